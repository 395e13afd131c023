// The grid: a list box that keeps only the visible rows in the document, so that 10,000 images scroll as fast as ten.
const grid = {
  box: document.getElementById('work-grid'), inner: document.getElementById('work-grid-inner'),
  images: [], chosen: new Set(), at: 0, from: 0, perRow: 1, made: new Map(), waiting: 0,
};
const GRID_TILE = 112, GRID_ROW = 140, GRID_SPARE = 3;

function showImages(images, keepPlace) {
  grid.images = images;
  const there = new Set(images);
  for (const image of grid.chosen) if (!there.has(image)) grid.chosen.delete(image);
  if (!keepPlace) { grid.at = grid.from = 0; grid.box.scrollTop = 0; }
  grid.at = grid.from = Math.max(0, Math.min(grid.at, images.length - 1));
  clearGrid();
  layGrid();
}

function clearGrid() {
  grid.inner.replaceChildren();
  grid.made.clear();
}

function layGrid() {
  grid.perRow = Math.max(1, Math.floor((grid.box.clientWidth - 4) / GRID_TILE));
  grid.inner.style.height = Math.ceil(grid.images.length / grid.perRow) * GRID_ROW + 'px';
  drawGrid();
}

function drawGrid() {
  const first = Math.max(0, Math.floor(grid.box.scrollTop / GRID_ROW) - GRID_SPARE) * grid.perRow;
  const rows = Math.ceil(grid.box.clientHeight / GRID_ROW) + 2 * GRID_SPARE;
  const last = Math.min(grid.images.length, first + rows * grid.perRow);
  for (const [place, made] of grid.made) if (place < first || place >= last) { made.remove(); grid.made.delete(place); }
  const fresh = document.createDocumentFragment();
  for (let place = first; place < last; place++) {
    if (grid.made.has(place)) continue;
    const made = gridTile(place);
    grid.made.set(place, made);
    fresh.append(made);
  }
  grid.inner.append(fresh);
  markActive();
}

function gridTile(place) {
  const image = grid.images[place];
  const label = labelOf(image);
  const made = element('div', { role: 'option', id: 'work-at-' + place, class: 'work-tile', 'data-place': place, 'aria-selected': String(grid.chosen.has(image)),
    'aria-posinset': place + 1, 'aria-setsize': grid.images.length, title: data.names[image], 'aria-label': spoken(image) },
  picture(image, true), element('span', { class: 'caption' }, caption(image, label)));
  if (work.hand[image]) made.classList.add('by-hand');
  if (isDoubtful(image)) made.classList.add('doubtful');
  made.style.left = (place % grid.perRow) * GRID_TILE + 'px';
  made.style.top = Math.floor(place / grid.perRow) * GRID_ROW + 'px';
  return made;
}

function caption(image, label) {
  const parts = element('bdi', {});
  if (label) parts.append(dot(label), (work.hand[image] ? '' : '~ ') + label);
  else if (work.rejected[image]) parts.append('rejected');
  else parts.append(shownGroup(work.group[image]) + '?');
  return parts;
}

function spoken(image) {
  const label = labelOf(image);
  const parts = [data.names[image]];
  if (work.rejected[image]) parts.push('rejected');
  else if (label) parts.push((work.hand[image] ? 'labeled ' : 'labeled by its group ') + label);
  else parts.push('no label, ' + groupWords(work.group[image]));
  if (isDoubtful(image)) parts.push('doubtful');
  return parts.join(', ');
}

function dot(name) {
  const made = element('span', { class: 'dot mark-' + (Math.max(0, work.classes.indexOf(name)) % COLORS), 'aria-hidden': 'true' });
  return made;
}

function markActive() {
  for (const [place, made] of grid.made) {
    made.classList.toggle('active', place === grid.at);
    made.setAttribute('aria-selected', String(grid.chosen.has(grid.images[place])));
  }
  if (grid.images.length) grid.box.setAttribute('aria-activedescendant', 'work-at-' + grid.at);
  else grid.box.removeAttribute('aria-activedescendant');
}

function goTo(place, extend) {
  if (!grid.images.length) return;
  grid.at = Math.max(0, Math.min(grid.images.length - 1, place));
  if (extend) chooseRange(grid.from, grid.at);
  else grid.from = grid.at;
  const top = Math.floor(grid.at / grid.perRow) * GRID_ROW;
  if (top < grid.box.scrollTop) grid.box.scrollTop = top;
  else if (top + GRID_ROW > grid.box.scrollTop + grid.box.clientHeight) grid.box.scrollTop = top + GRID_ROW - grid.box.clientHeight;
  drawGrid();
  tellChosen();
}

function chooseRange(a, b) {
  grid.chosen.clear();
  for (let place = Math.min(a, b); place <= Math.max(a, b); place++) grid.chosen.add(grid.images[place]);
}

function toggle(place) {
  const image = grid.images[place];
  if (!grid.chosen.delete(image)) grid.chosen.add(image);
  markActive();
  tellChosen();
}

// The images of an action: the selected ones, or else the focused one.
function targets() {
  if (grid.chosen.size) return grid.images.filter((image) => grid.chosen.has(image));
  return grid.images.length ? [grid.images[grid.at]] : [];
}

grid.box.addEventListener('scroll', () => {
  if (grid.waiting) return;
  grid.waiting = requestAnimationFrame(() => { grid.waiting = 0; drawGrid(); });
}, { passive: true });
new ResizeObserver(layGrid).observe(grid.box);

grid.box.addEventListener('click', (event) => {
  const found = event.target.closest('.work-tile');
  if (!found) return;
  const place = Number(found.dataset.place);
  if (event.shiftKey) { goTo(place, true); return; }
  grid.at = grid.from = place;
  toggle(place);
});
grid.box.addEventListener('dblclick', (event) => {
  const found = event.target.closest('.work-tile');
  if (found) choose(grid.images[Number(found.dataset.place)], grid.box, false);
});
grid.box.addEventListener('keydown', (event) => {
  if (event.altKey) return;
  const page = grid.perRow * Math.max(1, Math.floor(grid.box.clientHeight / GRID_ROW));
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid.perRow, ArrowUp: -grid.perRow, PageDown: page, PageUp: -page,
    Home: -grid.images.length, End: grid.images.length };
  if (event.key in steps && !event.ctrlKey && !event.metaKey) goTo(grid.at + steps[event.key], event.shiftKey);
  else if (event.key === ' ') toggle(grid.at);
  else if (event.key === 'Enter') choose(grid.images[grid.at], grid.box, false);
  else if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'a') { chooseRange(0, grid.images.length - 1); markActive(); tellChosen(); }
  else return;
  event.preventDefault();
});
