// State of the images during labeling. An action is a list of small steps (see labelkit/studio/label/actions.py); applying
// them returns the steps that undo them. The server applies the same steps to the same state.
const work = {
  group: Int32Array.from(columns.group), hand: new Array(data.n).fill(''), rejected: new Uint8Array(data.n), refused: new Map(),
  groupNames: data.groups.map((group) => group.name), groupLabels: data.groups.map(() => ''), classes: [],
};

function startWork() {
  const start = data.work.state;
  if (!start) {
    for (let i = 0; i < data.n; i++) if (columns.label[i] >= 0 && columns.usable[i]) work.hand[i] = data.classes[columns.label[i]];
    work.classes = [...new Set(work.hand.filter(Boolean))];
    return;
  }
  const name = (label) => (label < 0 ? '' : start.classes[label]);
  work.classes = start.classes.slice();
  work.group = new Int32Array(bytes(start.groups));
  work.hand = [...new Int32Array(bytes(start.hand))].map(name);
  work.rejected = new Uint8Array(bytes(start.rejected));
  work.groupNames = start.groupNames.slice();
  work.groupLabels = start.groupLabels.map(name);
  for (const [row, label] of start.refused) refuse(row, name(label), true);
}

function refuse(row, name, value) {
  if (!work.refused.has(row)) work.refused.set(row, new Set());
  const names = work.refused.get(row);
  if (value) names.add(name);
  else names.delete(name);
}

function isRefused(row, name) {
  return work.refused.has(row) && work.refused.get(row).has(name);
}

// The label of an image: its individual label, or else the name of its group.
function labelOf(row) {
  if (work.rejected[row]) return '';
  if (work.hand[row]) return work.hand[row];
  const group = work.group[row];
  const name = group < 0 ? '' : work.groupLabels[group];
  return name && !isRefused(row, name) ? name : '';
}

function shownGroup(group) {
  return group < 0 ? 'no group' : work.groupLabels[group] || work.groupNames[group];
}

// The name of a group, preceded by the word group unless it already contains it.
function groupWords(group) {
  const name = shownGroup(group);
  return group < 0 || (name === work.groupNames[group] && /^group /.test(name)) ? name : 'group ' + name;
}

function apply(steps) {
  const back = [];
  for (const step of steps) back.unshift(...applyOne(step));
  return back;
}

function applyOne(step) {
  if (step.name && step.do !== 'make' && !work.classes.includes(step.name)) work.classes.push(step.name);
  if (step.do === 'make') {
    work.groupNames.push(step.name);
    work.groupLabels.push('');
    return [];
  }
  if (step.do === 'name') {
    const before = work.groupLabels[step.group];
    work.groupLabels[step.group] = step.name || '';
    return [{ do: 'name', group: step.group, name: before || null }];
  }
  const old = new Map();
  const note = (value, row) => { if (!old.has(value)) old.set(value, []); old.get(value).push(row); };
  if (step.do === 'label') {
    for (const row of step.rows) { note(work.hand[row], row); work.hand[row] = step.name || ''; }
    return [...old].map(([name, rows]) => ({ do: 'label', rows, name: name || null }));
  }
  if (step.do === 'group') {
    for (const row of step.rows) { note(work.group[row], row); work.group[row] = step.group; }
    return [...old].map(([group, rows]) => ({ do: 'group', rows, group }));
  }
  const is = (row) => (step.do === 'reject' ? Boolean(work.rejected[row]) : isRefused(row, step.name));
  const changed = step.rows.filter((row) => is(row) !== step.value);
  for (const row of changed) {
    if (step.do === 'reject') work.rejected[row] = step.value ? 1 : 0;
    else refuse(row, step.name, step.value);
  }
  return changed.length ? [{ ...step, rows: changed, value: !step.value }] : [];
}

// The images shown: a group, a class, or one of the lists across groups.
function membersOfView(view) {
  if (view.images) return view.images;
  const found = [];
  for (let i = 0; i < data.n; i++) if (isInView(view, i)) found.push(i);
  const sureness = (i) => (Number.isFinite(columns.confidence[i]) ? columns.confidence[i] : -Infinity);
  const sign = view.kind === 'doubtful' ? -1 : 1;
  const byGuess = (a, b) => (view.kind === 'guessed' ? shownGroup(work.group[a]).localeCompare(shownGroup(work.group[b]), 'en', { numeric: true }) : 0);
  return view.kind === 'all' ? found : found.sort((a, b) => byGuess(a, b) || sign * (sureness(b) - sureness(a)) || a - b);
}

function isInView(view, i) {
  if (view.kind === 'group') return work.group[i] === view.id && !work.rejected[i];
  if (view.kind === 'class') return labelOf(i) === view.name;
  if (view.kind === 'out') return work.group[i] < 0 && !work.rejected[i] && !work.hand[i];
  if (view.kind === 'rejected') return Boolean(work.rejected[i]);
  if (view.kind === 'doubtful' || view.kind === 'guessed') return isDoubtful(i);
  return true;
}

function isDoubtful(i) {
  const limit = data.work.doubtful;
  return !work.hand[i] && !work.rejected[i] && work.group[i] >= 0 && Number.isFinite(columns.confidence[i]) && columns.confidence[i] < limit;
}

function count() {
  const found = { labels: 0, hand: 0, rejected: 0, out: 0, doubtful: 0, groups: work.groupNames.map(() => 0), classes: new Map() };
  for (let i = 0; i < data.n; i++) {
    const name = labelOf(i);
    if (name) { found.labels++; found.classes.set(name, (found.classes.get(name) || 0) + 1); }
    if (work.hand[i] && !work.rejected[i]) found.hand++;
    if (work.rejected[i]) found.rejected++;
    else if (work.group[i] >= 0) found.groups[work.group[i]]++;
    else if (!work.hand[i]) found.out++;
    if (isDoubtful(i)) found.doubtful++;
  }
  return found;
}

// Expected fraction of correct labels if each image keeps its predicted label; individual labels count as correct.
function expectedRight() {
  if (!columns.expected.length) return '';
  let right = 0, n = 0;
  for (let i = 0; i < data.n; i++) {
    if (work.rejected[i]) continue;
    n++;
    if (work.hand[i]) right++;
    else if (work.group[i] >= 0) right += columns.expected[i];
  }
  return n ? 'expected correct: about ' + Math.round(100 * right / n) + '%' : '';
}

// The known name of which a name is likely a typo: same letters and digits, or (from four letters) one or two letters apart.
function looksLike(name, known) {
  const plain = (text) => [...text.toLowerCase()].filter((one) => /[\p{L}\p{N}]/u.test(one)).join('');
  const digits = (text) => text.replace(/\D/g, '');
  const mine = plain(name);
  for (const other of known) {
    if (other === name || digits(other) !== digits(name)) continue;
    const text = plain(other);
    if (text === mine && mine) return other;
    if (mine.length >= 4 && lettersApart(mine, text) <= (mine.length >= 8 ? 2 : 1)) return other;
  }
  return '';
}

function lettersApart(a, b) {
  if (Math.abs(a.length - b.length) > 2) return 3;
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    row = next;
  }
  return row[b.length];
}
