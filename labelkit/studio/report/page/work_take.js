// Import labels from a CSV of paths and labels: read it here, show what it would change, and apply it as one action.
const take = { field: document.getElementById('work-take-file') };

// Rows of strings, with CSV quoting and line ends; the delimiter is the one for which the header contains a path column.
function readTable(text) {
  const head = text.replace(/^\uFEFF/, '');
  for (const delimiter of [',', ';', '\t']) {
    const rows = splitTable(head, delimiter);
    const names = (rows[0] || []).map((name) => name.trim().toLowerCase().replace(/\s+/g, '_'));
    const path = data.work.pathColumns.find((name) => names.includes(name));
    if (path === undefined) continue;
    const labels = names.includes('label') ? ['label'] : data.work.labelColumns.filter((name) => names.includes(name));
    if (labels.length !== 1) return { problem: labels.length ? 'It has several label columns: ' + labels.join(', ') + '.' : 'It has no label column, such as label or class.' };
    // in tables written by `start` and `predict`, predictions are not labels
    const kind = names.includes('confidence') ? names.indexOf('kind') : -1;
    return { rows: rows.slice(1).filter((row) => row.some(Boolean)), path: names.indexOf(path), label: names.indexOf(labels[0]), kind };
  }
  return { problem: 'Its first line has no path column, as in path,label.' };
}

function splitTable(text, delimiter) {
  const rows = [];
  let row = [], field = '', quoted = false, begun = false;
  const endField = () => { row.push(field); field = ''; begun = false; };
  const endRow = () => { endField(); rows.push(row); row = []; };
  for (let i = 0; i < text.length; i++) {
    const one = text[i];
    if (quoted) {
      if (one !== '"') field += one;
      else if (text[i + 1] === '"') { field += '"'; i++; }
      else quoted = false;
    } else if (one === '"' && !begun) { quoted = begun = true; }
    else if (one === delimiter) endField();
    else if (one === '\n' || one === '\r') { if (one === '\r' && text[i + 1] === '\n') i++; endRow(); }
    else { field += one; begun = true; }
  }
  if (field || row.length) endRow();
  return rows;
}

// The image of a path: the one with exactly this path, or else the only one whose path ends with it.
function pathFinder() {
  const plain = (path) => path.trim().replaceAll('\\', '/').replace(/^(\.\/)+/, '').normalize('NFC');
  const whole = new Map(), endings = new Map();
  for (let i = 0; i < data.n; i++) {
    const path = plain(data.work.paths[i] || data.names[i]);
    whole.set(path, i);
    const base = path.slice(path.lastIndexOf('/') + 1);
    if (!endings.has(base)) endings.set(base, []);
    endings.get(base).push([path, i]);
  }
  return (text) => {
    const path = plain(text);
    if (whole.has(path)) return whole.get(path);
    const near = endings.get(path.slice(path.lastIndexOf('/') + 1)) || [];
    const found = near.filter(([name]) => name.endsWith('/' + path) || path.endsWith('/' + name));
    return found.length === 1 ? found[0][1] : -1;
  };
}

// What the labels of a table would change: {fresh, other: Map of name to rows, same, unknown} or {problem}.
function compareTable(text) {
  const table = readTable(text);
  if (table.problem) return table;
  const find = pathFinder();
  const names = new Map(), found = { fresh: new Map(), other: new Map(), same: 0, unknown: [], empty: 0 };
  for (const row of table.rows) {
    const path = row[table.path] || '', name = (row[table.label] || '').trim();
    if (!name || isNoLabel(name) || data.work.guessedKinds.includes(row[table.kind])) { found.empty++; continue; }
    if ([...name].length > data.work.mostLetters) return { problem: 'A name may have at most ' + data.work.mostLetters + ' characters, but that of ' + path + ' has ' + [...name].length + '.' };
    const image = find(path);
    if (image < 0) { found.unknown.push(path); continue; }
    if (names.has(image) && names.get(image) !== name) return { problem: data.names[image] + ' has two labels: “' + names.get(image) + '” and “' + name + '”.' };
    if (names.has(image)) continue;
    names.set(image, name);
    const now = work.rejected[image] ? 'rejected' : work.hand[image];
    if (now === name) { found.same++; continue; }
    const into = now ? found.other : found.fresh;
    if (!into.has(name)) into.set(name, []);
    into.get(name).push(image);
  }
  return found;
}

function sizeOf(byName) {
  return [...byName.values()].reduce((sum, rows) => sum + rows.length, 0);
}

async function takeTable(file) {
  const found = compareTable(await file.text());
  if (found.problem) { warn(file.name + ': ' + found.problem + ' Nothing was changed.'); return; }
  warn('');
  const fresh = sizeOf(found.fresh), other = sizeOf(found.other);
  const like = [...found.fresh.keys(), ...found.other.keys()].map((name) => [name, knownNames().includes(name) ? '' : looksLike(name, knownNames())]).filter(([, near]) => near);
  const lines = ['New labels: ' + images(fresh) + '.', found.same ? 'Same label already: ' + images(found.same) + '.' : '',
    other ? 'Different label, or rejected: ' + images(other) + '.' : '', found.empty ? 'Lines without a label: ' + found.empty + '.' : '',
    found.unknown.length ? 'Paths that match no image, or several: ' + found.unknown.length + ', first: ' + found.unknown[0] + '.' : '',
    ...like.slice(0, 5).map(([name, near]) => '“' + name + '” resembles “' + near + '”.')];
  dialog('take-title').textContent = 'Import ' + file.name;
  dialog('take-text').replaceChildren(...lines.filter(Boolean).map((line) => element('li', {}, line)));
  dialog('take-new').hidden = !fresh;
  dialog('take-all').hidden = !other;
  const answer = await askIn(dialog('take'));
  if (answer !== 'new' && answer !== 'all') return;
  const steps = [];
  const add = (byName) => { for (const [name, rows] of byName) steps.push({ do: 'label', rows, name }); };
  add(found.fresh);
  if (answer === 'all') {
    const back = [...found.other.values()].flat().filter((row) => work.rejected[row]);
    if (back.length) steps.push({ do: 'reject', rows: back, value: false });
    add(found.other);
  }
  const count = fresh + (answer === 'all' ? other : 0);
  await act('import', steps, images(count) + ' labeled by ' + file.name + '.');
}

take.field.addEventListener('change', async () => {
  const [file] = take.field.files;
  if (file) await takeTable(file);
  take.field.value = ''; // allow choosing the same file again
});
