// The map: one mark per image, distinguished by color and shape.
const map = {
  canvas: document.getElementById('map-canvas'),
  tip: document.getElementById('map-tip'),
  legend: document.getElementById('map-legend'),
  status: document.getElementById('map-status'),
  by: document.getElementById('map-by'),
  names: document.getElementById('map-names'),
  width: 0, height: 0, ratio: 1,
  labels: [],
  zoom: 1, left: 0, top: 0,  // left and top of the visible part, in the unit square
  at: -1, only: new Set(),
  marks: document.createElement('canvas'),  // all marks, so that overlays do not require redrawing them
  x: new Float32Array(data.n), y: new Float32Array(data.n),  // of each image on the canvas
  cells: null,  // the images in each square of the canvas, computed on demand
};
const SHAPES = 7, COLORS = 12, MARGIN = 14, CELL = 24, MOST_NAMES = 40;

function keyOf(image, by = map.by.value) {
  if (by === 'group') return work.group[image];
  if (by === 'work') return map.labels[image];
  return by === 'none' ? 0 : columns[by][image];
}

// Labels change during labeling, so their numbers are looked up once per drawing.
function readLabels() {
  if (map.by.value !== 'work') return;
  const number = new Map(work.classes.map((name, place) => [name, place]));
  map.labels = Array.from({ length: data.n }, (_, image) => number.get(labelOf(image)) ?? -1);
}

function keyNames() {
  const by = map.by.value;
  if (by === 'group') return work.groupNames.map((name, group) => shownGroup(group));
  if (by === 'work') return work.classes;
  return by === 'label' ? data.classes : by === 'split' ? data.splits : ['all images'];
}

function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function markColor(key) {
  return key < 0 ? cssColor('--faint') : cssColor('--mark-' + (key % COLORS));
}

function trace(pen, shape, x, y, r) {
  pen.beginPath();
  if (shape === 0) pen.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape === 1) pen.rect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7);
  else if (shape === 2) { pen.moveTo(x, y - r * 1.1); pen.lineTo(x + r, y + r * 0.8); pen.lineTo(x - r, y + r * 0.8); pen.closePath(); }
  else if (shape === 3) { pen.moveTo(x, y - r * 1.2); pen.lineTo(x + r * 1.2, y); pen.lineTo(x, y + r * 1.2); pen.lineTo(x - r * 1.2, y); pen.closePath(); }
  else if (shape === 4) { pen.moveTo(x, y + r * 1.1); pen.lineTo(x + r, y - r * 0.8); pen.lineTo(x - r, y - r * 0.8); pen.closePath(); }
  else if (shape === 5) { pen.rect(x - r * 1.15, y - r * 0.4, r * 2.3, r * 0.8); pen.rect(x - r * 0.4, y - r * 1.15, r * 0.8, r * 2.3); }
  else for (let i = 0; i < 10; i++) {
    const angle = -Math.PI / 2 + i * Math.PI / 5, reach = i % 2 ? r * 0.55 : r * 1.25;
    pen[i ? 'lineTo' : 'moveTo'](x + reach * Math.cos(angle), y + reach * Math.sin(angle));
  }
}

function onCanvas(image) {
  return [map.x[image], map.y[image]];
}

function place() {
  const size = Math.min(map.width, map.height) - 2 * MARGIN, scale = map.zoom * size;
  const left = (map.width - size) / 2 - map.left * scale, top = (map.height - size) / 2 - map.top * scale;
  for (let i = 0; i < data.n; i++) {
    map.x[i] = left + columns.point[2 * i] / NONE * scale;
    map.y[i] = top + columns.point[2 * i + 1] / NONE * scale;
  }
  map.cells = null;
}

function fitCanvas() {
  const box = map.canvas.getBoundingClientRect();
  map.ratio = window.devicePixelRatio || 1;
  map.width = box.width;
  map.height = box.height;
  map.canvas.width = Math.round(box.width * map.ratio);
  map.canvas.height = Math.round(box.height * map.ratio);
}

function markSize() {
  return Math.min(6, Math.max(2.2, 120 / Math.sqrt(data.n)) * Math.sqrt(map.zoom));
}

// The pixels of a mark: their positions, and how much of each the mark covers. Copying them for each image takes a tenth
// of the time of tracing the shape.
function stamp(color, shape, r, alpha) {
  const side = Math.ceil(2 * (1.3 * r + 1) * map.ratio), canvas = document.createElement('canvas');
  canvas.width = canvas.height = side;
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  pen.scale(map.ratio, map.ratio);
  pen.fillStyle = color;
  trace(pen, shape, side / map.ratio / 2, side / map.ratio / 2, r);
  pen.fill();
  const pixels = pen.getImageData(0, 0, side, side).data, middle = 4 * ((side >> 1) * side + (side >> 1));
  const found = { side, color: pixels.slice(middle, middle + 3), across: [], down: [], cover: [] };
  for (let i = 0; i < side * side; i++) {
    if (!pixels[4 * i + 3]) continue;
    found.across.push(i % side);
    found.down.push(Math.floor(i / side));
    found.cover.push(alpha * pixels[4 * i + 3] / 255);
  }
  return found;
}

function drawMap() {
  if (!map.width) return;
  readLabels();
  place();
  const { width, height } = map.canvas, r = markSize(), stamps = new Map();
  map.marks.width = width;
  map.marks.height = height;
  const pen = map.marks.getContext('2d', { willReadFrequently: true });
  pen.fillStyle = cssColor('--surface');
  pen.fillRect(0, 0, width, height);
  const picture = pen.getImageData(0, 0, width, height), pixels = picture.data;
  const draw = (i, key, color, shape, size, alpha) => {
    const x = map.x[i], y = map.y[i];
    if (x < -r || y < -r || x > map.width + r || y > map.height + r) return;
    if (!stamps.has(key)) stamps.set(key, stamp(color(), shape, size, alpha));
    const { side, color: [red, green, blue], across, down, cover } = stamps.get(key);
    const left = Math.round(x * map.ratio - side / 2), top = Math.round(y * map.ratio - side / 2);
    for (let k = 0; k < cover.length; k++) {
      const u = left + across[k], v = top + down[k];
      if (u < 0 || v < 0 || u >= width || v >= height) continue;
      const at = 4 * (v * width + u), share = cover[k];
      pixels[at] += (red - pixels[at]) * share;
      pixels[at + 1] += (green - pixels[at + 1]) * share;
      pixels[at + 2] += (blue - pixels[at + 2]) * share;
    }
  };
  const isShown = (key) => !map.only.size || map.only.has(key), by = map.by.value;  // reading it per image is slow
  if (map.only.size) {
    for (let i = 0; i < data.n; i++) if (!isShown(keyOf(i, by))) draw(i, null, () => cssColor('--faint'), 0, Math.min(r, 2), 0.35);
  }
  for (let i = 0; i < data.n; i++) {
    const key = keyOf(i, by);
    if (isShown(key)) draw(i, key, () => markColor(key), key < 0 ? 0 : key % SHAPES, r, 0.85);
  }
  pen.putImageData(picture, 0, 0);
  drawOver();
}

// Overlays that change with the pointer.
function drawOver() {
  const pen = map.canvas.getContext('2d'), r = markSize();
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, map.canvas.width, map.canvas.height);
  if (map.marks.width) pen.drawImage(map.marks, 0, 0);
  pen.setTransform(map.ratio, 0, 0, map.ratio, 0, 0);
  drawNeighborLines(pen);
  if (map.names.checked) drawNames(pen);
  for (const [image, color] of [[panel.chosen, '--accent'], [map.at, '--text']]) {
    if (image < 0) continue;
    const [x, y] = onCanvas(image);
    pen.lineWidth = 2.5;
    pen.strokeStyle = cssColor(color);
    pen.beginPath();
    pen.arc(x, y, r + 5, 0, 2 * Math.PI);
    pen.stroke();
  }
}

function drawNeighborLines(pen) {
  if (panel.chosen < 0) return;
  const [x, y] = onCanvas(panel.chosen);
  pen.strokeStyle = cssColor('--accent');
  pen.lineWidth = 1;
  for (const { image } of panel.near) {
    const [u, v] = onCanvas(image);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(u, v);
    pen.stroke();
  }
}

function drawNames(pen) {
  const names = keyNames();
  if (map.by.value === 'none' || map.by.value === 'split' || names.length > MOST_NAMES) return;
  const places = names.map(() => [[], []]);
  for (let i = 0; i < data.n; i++) {
    const key = keyOf(i);
    if (key < 0) continue;
    const [x, y] = onCanvas(i);
    places[key][0].push(x);
    places[key][1].push(y);
  }
  const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  pen.font = '600 13px system-ui, sans-serif';
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.lineJoin = 'round';
  const taken = [];
  names.forEach((name, key) => {
    if (!places[key][0].length || (map.only.size && !map.only.has(key))) return;
    const text = name.length > 22 ? name.slice(0, 21) + '…' : name;
    const half = pen.measureText(text).width / 2 + 3;
    const x = Math.min(map.width - half, Math.max(half, middle(places[key][0])));
    let y = Math.min(map.height - 10, Math.max(10, middle(places[key][1])));
    // names of groups in the same place are moved below each other
    while (taken.some(([u, v, w]) => Math.abs(u - x) < w + half && Math.abs(v - y) < 16) && y < map.height - 10) y += 16;
    taken.push([x, y, half]);
    pen.lineWidth = 4;
    pen.strokeStyle = cssColor('--surface');
    pen.strokeText(text, x, y);
    pen.fillStyle = cssColor('--text');
    pen.fillText(text, x, y);
  });
}

function swatch(key) {
  const canvas = element('canvas', { width: 32, height: 32, class: 'swatch', 'aria-hidden': 'true' });
  const pen = canvas.getContext('2d');
  pen.fillStyle = markColor(key);
  trace(pen, key < 0 ? 0 : key % SHAPES, 16, 16, 10);
  pen.fill();
  return canvas;
}

function drawLegend() {
  map.legend.replaceChildren();
  readLabels();
  if (map.by.value === 'none') return;
  const counts = new Map();
  for (let i = 0; i < data.n; i++) counts.set(keyOf(i), (counts.get(keyOf(i)) || 0) + 1);
  const names = keyNames();
  const keys = [...counts.keys()].sort((a, b) => (a < 0) - (b < 0) || a - b);
  for (const key of keys) {
    const name = key < 0 ? 'none' : names[key];
    const button = element('button', { type: 'button', class: 'entry', 'aria-pressed': String(map.only.has(key)) },
      swatch(key), element('bdi', {}, name), element('span', { class: 'count' }, counts.get(key).toLocaleString('en')));
    button.addEventListener('click', () => {
      if (!map.only.delete(key)) map.only.add(key);
      button.setAttribute('aria-pressed', String(map.only.has(key)));
      drawMap();
    });
    map.legend.append(button);
  }
}

// The images sorted by square of the canvas, and the start index of each square.
function sortIntoCells() {
  const across = Math.ceil(map.width / CELL) + 1, down = Math.ceil(map.height / CELL) + 1;
  const starts = new Uint32Array(across * down + 1), cell = new Int32Array(data.n).fill(-1);
  for (let i = 0; i < data.n; i++) {
    const column = Math.floor(map.x[i] / CELL), row = Math.floor(map.y[i] / CELL);
    if (column < 0 || row < 0 || column >= across || row >= down) continue;
    cell[i] = row * across + column;
    starts[cell[i] + 1]++;
  }
  for (let i = 0; i < across * down; i++) starts[i + 1] += starts[i];
  const images = new Uint32Array(starts[across * down]), next = starts.slice();
  for (let i = 0; i < data.n; i++) if (cell[i] >= 0) images[next[cell[i]]++] = i;
  map.cells = { across, down, starts, images };
}

function nearestTo(x, y, reach) {
  if (!map.cells) sortIntoCells();
  const { across, down, starts, images } = map.cells;
  let best = -1, least = reach * reach;
  const steps = Math.ceil(reach / CELL);
  const column = Math.floor(x / CELL), row = Math.floor(y / CELL);
  for (let v = Math.max(0, row - steps); v <= Math.min(down - 1, row + steps); v++) {
    for (let u = Math.max(0, column - steps); u <= Math.min(across - 1, column + steps); u++) {
      for (let at = starts[v * across + u]; at < starts[v * across + u + 1]; at++) {
        const i = images[at];
        if (map.only.size && !map.only.has(keyOf(i))) continue;
        const far = (map.x[i] - x) ** 2 + (map.y[i] - y) ** 2;
        if (far < least) { least = far; best = i; }
      }
    }
  }
  return best;
}

function point(image, say) {
  if (image === map.at) return;
  map.at = image;
  drawOver();
  map.tip.hidden = image < 0;
  if (image < 0) return;
  const [x, y] = onCanvas(image);
  const lines = [data.names[image], groupName(image) && 'group ' + groupName(image), className(image) && 'class ' + className(image), sure(image)];
  map.tip.replaceChildren(picture(image, true), ...lines.filter(Boolean).map((line) => element('div', {}, element('bdi', {}, line))));
  const width = map.tip.offsetWidth, height = map.tip.offsetHeight;
  map.tip.style.left = Math.max(0, Math.min(map.width - width, x + 14)) + 'px';
  map.tip.style.top = (y + 14 + height > map.height ? Math.max(0, y - 14 - height) : y + 14) + 'px';
  if (say) map.status.textContent = describe(image) + (sure(image) ? ', ' + sure(image) : '');
}

function step(dx, dy) {
  let from = map.at >= 0 ? map.at : panel.chosen;
  if (from < 0) { point(nearestTo(map.width / 2, map.height / 2, Math.max(map.width, map.height)), true); return; }
  const [x, y] = onCanvas(from);
  let best = -1, least = Infinity;
  for (let i = 0; i < data.n; i++) {
    if (i === from || (map.only.size && !map.only.has(keyOf(i)))) continue;
    const [u, v] = onCanvas(i);
    const along = (u - x) * dx + (v - y) * dy, aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
    if (along <= 0.5 || aside > along) continue;
    const far = along + 2 * aside;
    if (far < least) { least = far; best = i; }
  }
  if (best < 0) return;
  const [u, v] = onCanvas(best);
  if (u < 0 || v < 0 || u > map.width || v > map.height) move(u - map.width / 2, v - map.height / 2);
  point(best, true);
}

function zoomTo(zoom, x, y) {
  const size = Math.min(map.width, map.height) - 2 * MARGIN;
  const after = Math.min(40, Math.max(1, zoom));
  const u = (x - (map.width - size) / 2) / size, v = (y - (map.height - size) / 2) / size;
  map.left += u / map.zoom - u / after;
  map.top += v / map.zoom - v / after;
  map.zoom = after;
  if (after === 1) map.left = map.top = 0;
  map.canvas.classList.toggle('zoomed', after > 1);
  point(-1);
  drawMap();
}

function move(dx, dy) {
  const size = Math.min(map.width, map.height) - 2 * MARGIN;
  map.left += dx / (size * map.zoom);
  map.top += dy / (size * map.zoom);
  drawMap();
}

// Lasso selection: with the button, or while Shift is pressed.
const lasso = { button: document.getElementById('map-lasso'), line: null };

function isLasso(event) {
  return event.shiftKey || lasso.button.getAttribute('aria-pressed') === 'true';
}

function drawLasso() {
  const pen = map.canvas.getContext('2d');
  pen.strokeStyle = cssColor('--accent');
  pen.lineWidth = 2;
  pen.beginPath();
  for (const [x, y] of lasso.line) pen.lineTo(x, y);
  pen.stroke();
}

function isInside(x, y, line) {
  let inside = false;
  for (let i = 0, j = line.length - 1; i < line.length; j = i++) {
    const [ax, ay] = line[i], [bx, by] = line[j];
    if ((ay > y) !== (by > y) && x < (bx - ax) * (y - ay) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}

function endLasso() {
  const { line } = lasso;
  lasso.line = null;
  lasso.button.setAttribute('aria-pressed', 'false');
  map.canvas.classList.remove('drawing');
  drawMap();
  const found = [];
  for (let i = 0; i < data.n; i++) {
    if (map.only.size && !map.only.has(keyOf(i))) continue;
    const [x, y] = onCanvas(i);
    if (isInside(x, y, line)) found.push(i);
  }
  showDrawn(found);
}

lasso.button.addEventListener('click', () => {
  const on = lasso.button.getAttribute('aria-pressed') !== 'true';
  lasso.button.setAttribute('aria-pressed', String(on));
  map.canvas.classList.toggle('drawing', on);
});
map.canvas.addEventListener('pointerup', () => { if (lasso.line) { drag.moved = true; endLasso(); } });

const drag = { from: null, moved: false };
map.canvas.addEventListener('pointerdown', (event) => {
  if (!isLasso(event)) return;
  lasso.line = [[event.offsetX, event.offsetY]];
  map.canvas.setPointerCapture(event.pointerId);
});
map.canvas.addEventListener('pointerdown', (event) => { drag.from = [event.offsetX, event.offsetY]; drag.moved = false; });
map.canvas.addEventListener('pointermove', (event) => {
  if (lasso.line) {
    lasso.line.push([event.offsetX, event.offsetY]);
    drawLasso();
    return;
  }
  if (drag.from && event.buttons && map.zoom > 1) {
    const [x, y] = drag.from;
    if (drag.moved || Math.hypot(event.offsetX - x, event.offsetY - y) > 4) {
      drag.moved = true;
      drag.from = [event.offsetX, event.offsetY];
      point(-1);
      move(x - event.offsetX, y - event.offsetY);
      return;
    }
  }
  point(nearestTo(event.offsetX, event.offsetY, 16), false);
});
map.canvas.addEventListener('pointerleave', () => { drag.from = null; point(-1); });
map.canvas.addEventListener('click', (event) => {
  drag.from = null;
  if (drag.moved) return;
  const found = nearestTo(event.offsetX, event.offsetY, 16);
  if (found >= 0) choose(found, map.canvas, false);
});
map.canvas.addEventListener('wheel', (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoomTo(map.zoom * Math.exp(-event.deltaY / 200), event.offsetX, event.offsetY);
}, { passive: false });
map.canvas.addEventListener('blur', () => point(-1));
map.canvas.addEventListener('keydown', (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  const [x, y] = map.at >= 0 ? onCanvas(map.at) : [map.width / 2, map.height / 2];
  if (event.key in steps) step(...steps[event.key]);
  else if (event.key === 'Enter' || event.key === ' ') { if (map.at >= 0) choose(map.at, map.canvas, false); }
  else if (event.key === '+' || event.key === '=') zoomTo(map.zoom * 1.6, x, y);
  else if (event.key === '-') zoomTo(map.zoom / 1.6, x, y);
  else if (event.key === '0') zoomTo(1, x, y);
  else return;
  event.preventDefault();
});

document.getElementById('map-in').addEventListener('click', () => zoomTo(map.zoom * 1.6, map.width / 2, map.height / 2));
document.getElementById('map-out').addEventListener('click', () => zoomTo(map.zoom / 1.6, map.width / 2, map.height / 2));
document.getElementById('map-all').addEventListener('click', () => zoomTo(1, map.width / 2, map.height / 2));
map.by.addEventListener('change', () => { map.only.clear(); drawLegend(); drawMap(); });
map.names.addEventListener('change', drawMap);
document.addEventListener('chosen', drawMap);
document.addEventListener('worked', () => { drawLegend(); drawMap(); });
document.addEventListener('recolor', () => { drawLegend(); drawMap(); });
new ResizeObserver(() => { fitCanvas(); drawMap(); }).observe(map.canvas);
fitCanvas();
drawLegend();
drawMap();

