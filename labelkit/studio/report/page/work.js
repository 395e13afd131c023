// The labeling part of the page, for naming groups and labeling images: lists, actions, keys, dialogs.
const ui = {
  groups: document.getElementById('work-groups'), classes: document.getElementById('work-classes'), names: document.getElementById('work-names'),
  title: document.getElementById('work-view'), name: document.getElementById('work-name'), form: document.getElementById('work-name-form'),
  progress: document.getElementById('work-progress'), asking: document.getElementById('work-asking'), chosen: document.getElementById('work-chosen'), say: document.getElementById('work-say'),
  warning: document.getElementById('work-warning'), groupButtons: document.getElementById('work-group-buttons'),
  view: { kind: 'all' }, counts: null, nameOf: -1,
};

function say(words) { ui.say.textContent = ui.say.textContent === words ? words + ' ' : words; }
function warn(words) { ui.warning.textContent = words; ui.warning.hidden = !words; }
function images(count) { return count.toLocaleString('en') + (count === 1 ? ' image' : ' images'); }

// Filters a view by the fields above the images.
const filter = { text: document.getElementById('work-filter-text'), kind: document.getElementById('work-filter-kind'), below: document.getElementById('work-filter-below') };

function shownOf(view) {
  const words = filter.text.value.trim().toLowerCase(), kind = filter.kind.value, below = filter.below.value === '' ? Infinity : Number(filter.below.value);
  const passes = { '': () => true, labeled: (i) => Boolean(work.hand[i]), unlabeled: (i) => !labelOf(i), unsure: isDoubtful }[kind];
  return membersOfView(view).filter((i) => passes(i) && (!words || data.names[i].toLowerCase().includes(words)) && (below === Infinity || columns.confidence[i] < below));
}

for (const field of Object.values(filter)) field.addEventListener('input', () => { grid.chosen.clear(); refresh(true); });
document.getElementById('work-filter').addEventListener('submit', (event) => event.preventDefault());

function show(view) {
  ui.view = view;
  grid.chosen.clear();
  refresh(true);
}

function sameView(a, b) { return a.kind === b.kind && a.id === b.id && a.name === b.name && a.images === b.images; }

function refresh(fresh) {
  ui.counts = count();
  if (ui.view.kind === 'group' && !ui.counts.groups[ui.view.id] && !fresh) {
    const next = groupOrder()[0];
    ui.view = next === undefined ? { kind: 'all' } : { kind: 'group', id: next };
    fresh = true;
  }
  drawLists();
  drawHead();
  showImages(shownOf(ui.view), !fresh);
  tellChosen();
  document.dispatchEvent(new CustomEvent('worked'));
}

function groupOrder() {
  const found = ui.counts.groups.map((size, id) => id).filter((id) => ui.counts.groups[id]);
  // groups without a name come first, then those of labeled classes, then those named by the user; each largest first
  const rank = (id) => (work.groupLabels[id] ? 2 : Number(work.classes.includes(work.groupNames[id])));
  return found.sort((a, b) => rank(a) - rank(b) || ui.counts.groups[b] - ui.counts.groups[a] || a - b);
}

function entry(view, text, size, mark) {
  const made = element('button', { type: 'button', class: 'entry', title: text, 'aria-pressed': String(sameView(view, ui.view)) }, mark || null,
    element('bdi', {}, text), element('span', { class: 'count' }, size.toLocaleString('en')));
  made.addEventListener('click', () => show(view));
  return made;
}

function drawLists() {
  const focused = [...document.querySelectorAll('#work .entry')].indexOf(document.activeElement);
  const lists = [[{ kind: 'all' }, 'all images', data.n], [{ kind: 'doubtful' }, 'doubtful', ui.counts.doubtful],
    [{ kind: 'guessed' }, 'doubtful, by guess', ui.counts.doubtful],
    [{ kind: 'out' }, 'in no group', ui.counts.out], [{ kind: 'rejected' }, 'rejected', ui.counts.rejected]];
  ui.groups.replaceChildren(...groupOrder().map((id) => {
    const label = work.groupLabels[id];
    return entry({ kind: 'group', id }, label || work.groupNames[id] + '?', ui.counts.groups[id], label ? dot(label) : element('span', { class: 'dot none', 'aria-hidden': 'true' }));
  }), ...lists.filter(([view, , size]) => size || view.kind === 'all').map(([view, text, size]) => entry(view, text, size)));
  const names = work.classes.filter((name) => ui.counts.classes.get(name)).sort((a, b) => ui.counts.classes.get(b) - ui.counts.classes.get(a));
  ui.classes.replaceChildren(...names.map((name) => entry({ kind: 'class', name }, name, ui.counts.classes.get(name), dot(name))));
  if (!names.length) ui.classes.append(element('p', { class: 'small' }, 'None yet. Name a group.'));
  ui.names.replaceChildren(...knownNames().map((name) => element('option', { value: name })));
  if (focused >= 0) [...document.querySelectorAll('#work .entry')][focused]?.focus();
}

// Whether a group has the name of a class, so that its name is a likely label.
function isKnown(group) {
  return Boolean(data.groups[group]?.known) || work.classes.includes(work.groupNames[group]);
}

function likelyName(image) {
  const group = work.group[image];
  return labelOf(image) || (group >= 0 && isKnown(group) ? work.groupNames[group] : '');
}

// Likely names: classes with labels, and groups that have the name of a class.
function knownNames() {
  const fromGroups = work.groupNames.filter((name, group) => isKnown(group));
  return [...new Set([...work.classes, ...fromGroups])].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
}

function drawHead() {
  const { view } = ui;
  const size = shownOf(view).length;
  const isGroup = view.kind === 'group';
  const titles = { all: 'All images', doubtful: 'Doubtful images, least confident first', guessed: 'Doubtful images by guessed class, most confident first', out: 'Images in no group', rejected: 'Rejected images', class: 'Class ' + view.name };
  ui.title.textContent = (isGroup ? groupWords(view.id).replace(/^g/, 'G') : view.title || titles[view.kind]) + ' (' + size.toLocaleString('en') + ')';
  ui.form.hidden = ui.groupButtons.hidden = !isGroup;
  // keep the text being typed, unless it was for another group
  if (isGroup && (document.activeElement !== ui.name || ui.nameOf !== view.id)) {
    ui.nameOf = view.id;
    ui.name.value = work.groupLabels[view.id] || (isKnown(view.id) ? work.groupNames[view.id] : '');
  }
  const named = groupOrder().filter((id) => work.groupLabels[id] || isKnown(id)).length;
  const right = expectedRight();
  ui.progress.textContent = ui.counts.labels.toLocaleString('en') + ' of ' + data.n.toLocaleString('en') + ' images labeled, '
    + ui.counts.hand.toLocaleString('en') + ' individually; ' + named + ' of ' + groupOrder().length + ' groups named' + (right ? '; ' + right : '');
}

function tellChosen() {
  const found = targets();
  ui.chosen.textContent = grid.chosen.size ? images(grid.chosen.size) + ' selected' : found.length ? data.names[found[0]] : 'no image';
}

// Dialogs of the browser, which capture the focus and return it.
function dialog(id) { return document.getElementById('work-' + id); }

function askIn(box) {
  return new Promise((answer) => {
    box.returnValue = '';
    box.addEventListener('close', () => answer(box.returnValue), { once: true });
    box.showModal();
  });
}

async function askName(question, start) {
  const box = dialog('ask'), field = dialog('ask-name');
  dialog('ask-title').textContent = question;
  field.value = start || '';
  const answering = askIn(box);
  field.select();
  return (await answering) === 'ok' ? checkedName(field.value) : '';
}

// Names that label tables use for unlabeled images.
function isNoLabel(name) {
  return data.work.noLabel.includes(name) || data.work.noLabelWords.includes(name.toLowerCase());
}

async function checkedName(text) {
  const name = text.trim();
  if (!name) return '';
  if (isNoLabel(name) && !work.classes.includes(name)) { warn('“' + name + '” means unlabeled: choose another name.'); return ''; }
  if ([...name].length > data.work.mostLetters) { warn('A name may have at most ' + data.work.mostLetters + ' characters, but this one has ' + [...name].length + '.'); return ''; }
  warn('');
  const known = knownNames();
  const near = known.includes(name) ? '' : looksLike(name, known);
  if (!near) return name;
  dialog('like-text').textContent = '“' + name + '” resembles the existing class “' + near + '”.';
  dialog('like-old').textContent = 'Use “' + near + '”';
  dialog('like-new').textContent = 'New class “' + name + '”';
  const answered = await askIn(dialog('like'));
  return answered === 'old' ? near : answered === 'new' ? name : '';
}

async function askConflict(told) {
  const who = [...new Set(told.theirs.map((one) => one.by || 'another page'))].join(', ');
  const what = [told.rows.length ? images(told.rows.length) : '', ...told.groups.map(groupWords)].filter(Boolean).join(' and ');
  dialog('conflict-text').textContent = who + ' changed ' + what + ' since this page was updated (' + told.theirs.map((one) => one.kind).join(', ') + '). The page now shows their change.';
  return (await askIn(dialog('conflict'))) === 'mine';
}

// Actions on a group.
async function nameGroup(text) {
  if (ui.view.kind !== 'group') return;
  const { id } = ui.view;
  const name = await checkedName(text);
  if (!name) return;
  const size = ui.counts.groups[id];
  if (await act('name', [{ do: 'name', group: id, name }], 'Group named ' + name + ', ' + images(size) + '.')) {
    const next = groupOrder().find((other) => !work.groupLabels[other]);
    if (next !== undefined) { show({ kind: 'group', id: next }); ui.name.focus(); ui.name.select(); }
  }
}

async function mergeGroup() {
  if (ui.view.kind !== 'group') return;
  const { id } = ui.view;
  const others = groupOrder().filter((other) => other !== id);
  const target = await askGroup('Merge ' + groupWords(id) + ' into', others);
  if (target < 0) return;
  const rows = membersOfView({ kind: 'group', id });
  if (await act('merge', [{ do: 'group', rows, group: target }], images(rows.length) + ' merged into ' + shownGroup(target) + '.')) show({ kind: 'group', id: target });
}

async function askGroup(question, ids) {
  const field = dialog('pick-group');
  dialog('pick-title').textContent = question;
  field.replaceChildren(...ids.map((id) => element('option', { value: id }, shownGroup(id) + ' (' + ui.counts.groups[id] + ')')));
  return (await askIn(dialog('pick'))) === 'ok' && field.value ? Number(field.value) : -1;
}

async function dissolveGroup() {
  if (ui.view.kind !== 'group') return;
  const rows = membersOfView(ui.view);
  await act('dissolve', [{ do: 'group', rows, group: -1 }], 'Group dissolved: ' + images(rows.length) + ' no longer in a group.');
}

async function splitOff() {
  const rows = targets();
  if (!rows.length) return;
  const id = work.groupNames.length;
  const name = 'part of ' + shownGroup(work.group[rows[0]]).slice(0, 100);
  if (await act('split', [{ do: 'make', group: id, name }, { do: 'group', rows, group: id }], images(rows.length) + ' moved to a new group.')) show({ kind: 'group', id });
}

// Splits a group in two by hierarchical clustering; the smaller part becomes a new group.
async function splitByTree() {
  if (ui.view.kind !== 'group') return;
  if (!isServed) { say('Splitting a group requires the server: labelkit label --index STORE --serve.'); return; }
  const { id } = ui.view;
  const response = await fetch('/api/parts/' + id, { headers: authorized() }).catch(() => null);
  if (!response) { warn('The server is not responding. Restart it, and reload this page.'); return; }
  const told = await response.json();
  if (!response.ok) { warn(told.problem); return; }
  if (told.parts.length < 2) { say('These images cannot be split.'); return; }
  const [large, small] = told.parts, made = work.groupNames.length;
  const name = 'part of ' + shownGroup(id).slice(0, 100);
  await act('split', [{ do: 'make', group: made, name }, { do: 'group', rows: small, group: made }], 'Split: ' + images(large.length) + ' remain, ' + images(small.length) + ' moved to ' + name + '.');
}

// Actions on the selected images, or on the focused one.
async function labelImages(name) {
  const rows = targets();
  const found = rows.length ? name || await askName('Label ' + images(rows.length), '') : '';
  if (found) await act('label', [{ do: 'label', rows, name: found }], images(rows.length) + ' labeled ' + found + '.');
}

async function moveImages() {
  const rows = targets();
  if (!rows.length) return;
  const target = await askGroup('Move ' + images(rows.length) + ' to', groupOrder().filter((id) => ui.view.kind !== 'group' || id !== ui.view.id));
  if (target >= 0) await act('move', [{ do: 'group', rows, group: target }], images(rows.length) + ' moved to ' + shownGroup(target) + '.');
}

// Marks images as not belonging to their likely class: removes the label and the group.
async function notThis() {
  const rows = targets();
  const steps = [];
  const byName = new Map();
  for (const row of rows) {
    const name = likelyName(row);
    if (name) byName.set(name, [...(byName.get(name) || []), row]);
  }
  for (const [name, some] of byName) steps.push({ do: 'not', rows: some, name, value: true });
  const own = rows.filter((row) => work.hand[row]), grouped = rows.filter((row) => work.group[row] >= 0);
  if (own.length) steps.push({ do: 'label', rows: own, name: null });
  if (grouped.length) steps.push({ do: 'group', rows: grouped, group: -1 });
  await act('not this', steps, images(rows.length) + ' removed.');
}

async function rejectImages() {
  const rows = targets();
  const value = rows.some((row) => !work.rejected[row]);
  if (rows.length) await act(value ? 'reject' : 'include again', [{ do: 'reject', rows, value }], images(rows.length) + (value ? ' rejected.' : ' included again.'));
}

// Confirms the likely labels of images.
async function confirmImages() {
  const byName = new Map();
  for (const row of targets()) {
    const name = likelyName(row);
    if (name && !work.hand[row]) byName.set(name, [...(byName.get(name) || []), row]);
  }
  const steps = [...byName].map(([name, rows]) => ({ do: 'label', rows, name }));
  const done = steps.reduce((sum, step) => sum + step.rows.length, 0);
  if (!done) { say('Nothing to confirm: these images have no likely label, or are already labeled individually.'); return; }
  await act('confirm', steps, images(done) + ' confirmed.');
}

// Shows the images most similar to one, to label them together.
async function alike() {
  const [image] = targets();
  if (image === undefined) return;
  const found = await likeImages(image);
  show({ kind: 'list', title: 'Similar to ' + data.names[image] + ', nearest first', images: [image, ...found] });
  grid.box.focus();
  say(images(found.length) + ' similar to ' + data.names[image] + '.');
}

// Shows the images inside a line drawn on the map.
function showDrawn(found) {
  if (!found.length) { say('No images are inside the line.'); return; }
  show({ kind: 'list', title: 'Images inside the line', images: found });
  chooseRange(0, found.length - 1);
  markActive();
  tellChosen();
  document.getElementById('work').scrollIntoView();
  grid.box.focus();
  say(images(found.length) + ' inside the line selected.');
}

function nextGroup(step) {
  const order = groupOrder();
  if (!order.length) return;
  const at = ui.view.kind === 'group' ? order.indexOf(ui.view.id) : -1;
  show({ kind: 'group', id: order[(at + step + order.length) % order.length] });
  say(ui.title.textContent);
}

const KEYS = {
  n: () => { if (ui.view.kind === 'group') { ui.name.focus(); ui.name.select(); } },
  l: () => labelImages(''), m: moveImages, x: notThis, r: rejectImages, c: confirmImages, a: alike, p: splitOff,
  g: mergeGroup, d: dissolveGroup, u: undo, s: save, i: () => take.field.click(), t: splitByTree, o: () => openOne(), f: askAgain, j: () => nextGroup(1), k: () => nextGroup(-1), '?': () => askIn(dialog('help')),
};

document.addEventListener('keydown', (event) => {
  if (event.key.toLowerCase() === 'z' && (event.ctrlKey || event.metaKey) && !isTyping(event.target)) { event.preventDefault(); undo(); return; }
  if (event.altKey || event.ctrlKey || event.metaKey || isTyping(event.target) || document.querySelector('dialog[open]')) return;
  const key = event.key.toLowerCase();
  if (key === 'escape' && grid.chosen.size) { grid.chosen.clear(); markActive(); tellChosen(); return; }
  if (!(key in KEYS)) return;
  event.preventDefault();
  KEYS[key]();
});

function isTyping(target) {
  return target.matches('input, textarea, select');
}

for (const button of document.querySelectorAll('[data-work]')) button.addEventListener('click', () => KEYS[button.dataset.work]());
ui.form.addEventListener('submit', (event) => { event.preventDefault(); nameGroup(ui.name.value); });

function openWork() {
  startWork();
  if (!isServed) restoreKept();
  ui.counts = count();
  const first = groupOrder()[0];
  ui.view = first === undefined ? { kind: 'all' } : { kind: 'group', id: first };
  refresh(true);
  if (isServed) follow();
  // suggest the most effective way first (examples/label_person.py)
  if (!keeper.log.length) say('Start with the most useful images: choose “One by one”.');
}
