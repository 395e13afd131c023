// Tiles: each image is a canvas, drawn from its sheet when it comes into view; arrow keys move within rows of tiles.
const SHEETS_KEPT = data.work.mode === 'server' ? 2000 : 40;
const sheets = new Map();

function sheet(number) {
  let found = sheets.get(number);
  if (found) sheets.delete(number);
  else found = data.work.mode === 'server' ? readPicture('/api/thumbnails/' + number) : readSheet(number);
  sheets.set(number, found);
  // drop the least recently used sheet: decoded pixels take many times the space of the file
  if (sheets.size > SHEETS_KEPT) sheets.delete(sheets.keys().next().value);
  return found;
}

function readSheet(number) {
  const picture = new Image();
  picture.src = 'data:image/webp;base64,' + document.getElementById('sheet-' + number).textContent;
  return picture.decode().then(() => picture);
}

// Requests an image from the server, with the token; null if the server does not have it.
async function readPicture(path) {
  const response = await fetch(path, { headers: authorized() }).catch(() => null);
  return response && response.ok ? createImageBitmap(await response.blob()) : null;
}

function hasPicture(image) {
  return columns.tile[image] >= 0;
}

function paint(canvas) {
  if (canvas.dataset.done) return Promise.resolve();
  canvas.dataset.done = '1';
  const tile = columns.tile[Number(canvas.dataset.draw)];
  const place = tile % data.tilesPerSheet;
  const x = data.side * (place % data.tilesPerRow), y = data.side * Math.floor(place / data.tilesPerRow);
  return sheet(Math.floor(tile / data.tilesPerSheet)).then((picture) => {
    if (!picture) { canvas.replaceWith(element('span', { class: 'gone' }, 'no picture')); return; }
    canvas.getContext('2d').drawImage(picture, x, y, canvas.width, canvas.height, 0, 0, canvas.width, canvas.height);
  });
}

const inView = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    inView.unobserve(entry.target);
    paint(entry.target);
  }
}, { rootMargin: '300px' });

// The picture alone; its name is given by the surrounding element.
function picture(image, now) {
  if (!hasPicture(image)) return element('span', { class: 'gone' }, 'no picture');
  const height = columns.tileSize[2 * image], width = columns.tileSize[2 * image + 1];
  const canvas = element('canvas', { width, height, 'data-draw': image, 'aria-hidden': 'true' });
  if (data.side <= 48) canvas.className = 'pixels';
  if (now) paint(canvas);
  else inView.observe(canvas);
  return canvas;
}

// The largest available picture: that of the file, or the full image from the server.
async function showLarge(image, box) {
  if (data.work.mode !== 'server') return;
  const large = await readPicture('/api/images/' + image);
  if (!large || !box.isConnected) return;
  const canvas = element('canvas', { width: large.width, height: large.height, 'aria-hidden': 'true' });
  canvas.getContext('2d').drawImage(large, 0, 0);
  box.replaceChildren(canvas);
}

function describe(image) {
  const parts = [data.names[image]];
  if (columns.group[image] >= 0) parts.push('group ' + groupName(image));
  if (columns.label[image] >= 0) parts.push('class ' + className(image));
  if (!hasPicture(image)) parts.push('no picture');
  return parts.join(', ');
}

function sure(image) {
  const value = columns.confidence[image];
  return Number.isFinite(value) ? data.measure + ' ' + value.toFixed(2) : '';
}

function tile(image, caption, spoken) {
  const lines = (Array.isArray(caption) ? caption : [caption]).filter(Boolean);
  return element('button',
    { type: 'button', class: 'tile', 'data-image': image, title: data.names[image],
      'aria-label': [describe(image), spoken || ''].filter(Boolean).join(', ') },
    picture(image), ...lines.map((line) => element('span', { class: 'caption' }, element('bdi', {}, line))));
}

// The text below a tile and the text announced after its name, depending on the list.
function captions(image, kind) {
  const group = columns.group[image];
  const major = group < 0 ? -1 : data.groups[group].major;
  const label = columns.label[image];
  const odd = label >= 0 && major >= 0 && label !== major;
  const name = label < 0 ? '' : (odd ? '≠ ' : '') + className(image);
  if (kind === 'doubtful') {
    const next = columns.runnerUp[image];
    const number = Number.isFinite(columns.confidence[image]) ? columns.confidence[image].toFixed(2) : '';
    const other = next < 0 ? '' : 'or ' + data.groups[next].name;
    return [[number, other, name], [sure(image), next < 0 ? '' : 'next group ' + data.groups[next].name].join(', ')];
  }
  if (kind === 'named') return [[data.names[image], className(image)], ''];
  return [[name], odd ? 'not the most frequent class' : ''];
}

function fill(box, images, kind) {
  const fragment = document.createDocumentFragment();
  for (const image of images) {
    const [caption, spoken] = captions(image, kind);
    fragment.append(tile(image, caption, spoken));
  }
  box.append(fragment);
  settle(box);
}

// One tab stop per row of tiles; arrow keys move within the row.
function settle(box) {
  const tiles = [...box.querySelectorAll('.tile')];
  const current = tiles.find((one) => one.tabIndex === 0 && one.dataset.current) || tiles[0];
  for (const one of tiles) one.tabIndex = one === current ? 0 : -1;
}

function walk(event) {
  const from = event.target.closest('.tiles .tile');
  if (!from || event.altKey || event.ctrlKey || event.metaKey) return;
  const tiles = [...from.closest('.tiles').querySelectorAll('.tile')];
  const at = tiles.indexOf(from);
  const top = from.offsetTop;
  const perRow = Math.max(1, tiles.filter((one) => one.offsetTop === tiles[0].offsetTop).length);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow };
  let to = null;
  if (event.key in steps) to = at + steps[event.key];
  else if (event.key === 'Home') to = 0;
  else if (event.key === 'End') to = tiles.length - 1;
  if (to === null) return;
  event.preventDefault();
  const found = tiles[Math.min(tiles.length - 1, Math.max(0, to))];
  if (Math.abs(steps[event.key] || 0) > 1 && (to < 0 || (to >= tiles.length && found.offsetTop === top))) return;
  for (const one of tiles) { one.tabIndex = -1; delete one.dataset.current; }
  found.tabIndex = 0;
  found.dataset.current = '1';
  found.focus();
}

document.addEventListener('keydown', walk);

