// Data of the page, read once from the file or the server: JSON, with columns of little-endian numbers in base64.
const data = await readData();
const NONE = 65535;

async function readData() {
  const here = document.getElementById('data').textContent;
  if (here) return JSON.parse(here);
  const problem = document.getElementById('problem');
  const response = await fetch('/api/session', { headers: authorized() }).catch(() => null);
  const told = response ? await response.json() : { problem: 'The server is not responding. Restart it.' };
  problem.textContent = response && response.ok ? '' : told.problem;
  problem.hidden = Boolean(response && response.ok);
  // without data, the page cannot continue
  return response && response.ok ? told : new Promise(() => {});
}

// The token follows the # of the link: browsers do not send it by themselves, so it appears in no log.
function authorized() {
  return { Authorization: 'Bearer ' + location.hash.slice(1) };
}

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
  expected: new Float32Array(bytes(data.columns.expected)),
  label: new Int32Array(bytes(data.columns.label)),
  usable: new Uint8Array(bytes(data.columns.usable)),
  split: new Int16Array(bytes(data.columns.split)),
  point: new Uint16Array(bytes(data.columns.point)),
  tile: new Int32Array(bytes(data.columns.tile)),
  tileSize: new Uint8Array(bytes(data.columns.tileSize)),
  neighbor: new Uint16Array(bytes(data.columns.neighbor)),
  score: new Uint16Array(bytes(data.columns.score)),
  choice: new Int16Array(bytes(data.columns.choice)),
};

function groupName(image) {
  const group = work.group[image];
  return group < 0 ? '' : shownGroup(group);
}

function className(image) {
  const label = columns.label[image];
  return label < 0 ? '' : data.classes[label];
}

async function neighborsOf(image) {
  if (data.work.mode === 'server') return (await readLike(image)).slice(0, NEIGHBORS);
  const found = [];
  for (let i = image * data.neighbors; i < (image + 1) * data.neighbors; i++) {
    if (columns.neighbor[i] === NONE) continue;
    const share = columns.score[i] / NONE;
    found.push({ image: columns.neighbor[i], score: data.scoreRange[0] + share * (data.scoreRange[1] - data.scoreRange[0]) });
  }
  return found;
}

const NEIGHBORS = 12;

async function readLike(image) {
  const response = await fetch('/api/like/' + image, { headers: authorized() });
  return response.ok ? (await response.json()).images : [];
}

// The images most similar to one: those the server finds, or in a file, its neighbors and their neighbors.
async function likeImages(image) {
  if (data.work.mode === 'server') return (await readLike(image)).map((one) => one.image);
  const found = new Set([image]);
  for (const from of [image, ...(await neighborsOf(image)).map((one) => one.image)]) {
    for (const near of await neighborsOf(from)) found.add(near.image);
  }
  found.delete(image);
  return [...found];
}

// Text is inserted only as text nodes and attributes, never as markup.
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

