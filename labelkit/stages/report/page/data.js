// What the page holds, read once: JSON, and columns of little-endian numbers in base64.
const data = JSON.parse(document.getElementById('data').textContent);
const NONE = 65535;

function bytes(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found.buffer;
}

const columns = {
  group: new Int32Array(bytes(data.columns.group)),
  runnerUp: new Int32Array(bytes(data.columns.runnerUp)),
  confidence: new Float32Array(bytes(data.columns.confidence)),
  label: new Int32Array(bytes(data.columns.label)),
  usable: new Uint8Array(bytes(data.columns.usable)),
  split: new Int16Array(bytes(data.columns.split)),
  point: new Uint16Array(bytes(data.columns.point)),
  tile: new Int32Array(bytes(data.columns.tile)),
  tileSize: new Uint8Array(bytes(data.columns.tileSize)),
  neighbor: new Uint16Array(bytes(data.columns.neighbor)),
  score: new Uint16Array(bytes(data.columns.score)),
};

function groupName(image) {
  const group = columns.group[image];
  return group < 0 ? '' : data.groups[group].name;
}

function className(image) {
  const label = columns.label[image];
  return label < 0 ? '' : data.classes[label];
}

function neighborsOf(image) {
  const found = [];
  for (let i = image * data.neighbors; i < (image + 1) * data.neighbors; i++) {
    if (columns.neighbor[i] === NONE) continue;
    const share = columns.score[i] / NONE;
    found.push({ image: columns.neighbor[i], score: data.scoreRange[0] + share * (data.scoreRange[1] - data.scoreRange[0]) });
  }
  return found;
}

// Texts reach the page as text nodes and attributes only, never as markup.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  for (const child of children) if (child !== null) made.append(child);
  return made;
}

function numbers(text) {
  return text ? text.split(' ').map(Number) : [];
}

