// Storage of labels: in the browser until they are saved (file), or immediately on disk (server).
const keeper = { log: [], undone: new Set(), seen: 0, client: clientName(), busy: Promise.resolve(),
  asked: { number: 0, state: 'idle' } };
// A reloaded page keeps its name, so that it can undo its actions; a duplicated tab gets a new name.
function clientName() {
  const again = performance.getEntriesByType('navigation')[0]?.type === 'reload';
  let name = '';
  try { name = (again && sessionStorage.getItem('labelkit-client')) || ''; } catch (error) { /* then the name is new */ }
  name = name || Math.random().toString(36).slice(2);
  try { sessionStorage.setItem('labelkit-client', name); } catch (error) { /* as above */ }
  return name;
}

const isServed = data.work.mode === 'server';
const KEEP_KEY = 'labelkit-work-' + data.work.key;

// Performs an action, shows it when it is saved, announces it, and returns whether it succeeded.
async function act(kind, steps, words) {
  if (!steps.length) return false;
  if (!isServed) keptHere(kind, steps, 0);
  else if (!await ask('act', { kind, steps })) return false;
  say(words);
  refresh();
  return true;
}

function undo() {
  const undone = keeper.busy.then(undoLast); // the last action, after pending requests are answered
  keeper.busy = undone.catch(() => null);
  return undone;
}

async function undoLast() {
  const last = [...keeper.log].reverse().find((one) => !one.undoes && one.client === keeper.client && !keeper.undone.has(one.round));
  if (!last) { say('Nothing to undo.'); return; }
  if (!isServed) keptHere('undo', last.back, last.round);
  else if (!await askNow('undo', { round: last.round })) return;
  say('Undone: ' + last.kind + '.');
  refresh();
}

function keptHere(kind, steps, undoes) {
  const round = keeper.log.length + 1;
  keeper.log.push({ round, kind, steps, undoes, client: keeper.client, back: apply(steps) });
  if (undoes) keeper.undone.add(undoes);
  keep();
}

function keep() {
  const log = keeper.log.map(({ kind, steps, undoes }) => ({ kind, steps, undoes }));
  // a browser may not store anything for files, or not enough, so the page warns
  try { localStorage.setItem(KEEP_KEY, JSON.stringify(log)); } catch (error) { warn('This browser cannot store your labels: save them before you close the page.'); }
}

function restoreKept() {
  let log = [];
  try { log = JSON.parse(localStorage.getItem(KEEP_KEY)) || []; } catch (error) { return; }
  for (const { kind, steps, undoes } of log) keptHere(kind, steps, undoes);
  if (log.length) say(log.length + ' earlier actions restored.');
}

function takeIn(actions) {
  for (const done of actions) {
    if (done.round <= keeper.seen) continue;
    apply(done.steps);
    keeper.log.push(done);
    if (done.undoes) keeper.undone.add(done.undoes);
    keeper.seen = done.round;
  }
}

// A field of the table, with CSV quoting.
function csvField(text) {
  return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function labelsCsv() {
  const lines = ['path,label,how'];
  for (let i = 0; i < data.n; i++) {
    const label = labelOf(i);
    if (label) lines.push([data.work.paths[i] || data.names[i], label, work.hand[i] ? 'image' : 'group'].map(csvField).join(','));
  }
  return lines.join('\n') + '\n';
}

function save() {
  const link = element('a', { download: 'labels.csv' });
  link.href = URL.createObjectURL(new Blob([labelsCsv()], { type: 'text/csv' }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  say('labels.csv saved. Import it by: labelkit start PHOTOS --labels labels.csv, or labelkit label --from labels.csv');
}

// The server. Requests are sent one after another, so that responses arrive in order; a response contains all changes.
function ask(path, body) {
  const answer = keeper.busy.then(() => askNow(path, body));
  keeper.busy = answer.catch(() => null);
  return answer;
}

async function askNow(path, body) {
  let response, told;
  try {
    response = await fetch('/api/' + path, { method: 'POST', headers: { ...authorized(), 'Content-Type': 'application/json' }, body: JSON.stringify({ ...body, client: keeper.client, seen: keeper.seen }) });
    told = await response.json();
  } catch (error) {
    warn('The server is not responding: nothing was changed. Restart it, and reload this page.');
    return false;
  }
  if (response.ok) { warn(''); takeIn(told.actions); tellAsked(told.asked); return true; }
  if (response.status === 409) return settleConflict(path, body, told);
  warn(told.problem);
  return false;
}

// Conflicts are not resolved silently: the other change is shown, and the user chooses.
async function settleConflict(path, body, told) {
  takeIn(told.actions);
  refresh();
  if (await askConflict(told)) return askNow(path, body);
  say('Their change is kept.');
  return false;
}

async function changes() {
  const response = await fetch('/api/changes?since=' + keeper.seen, { headers: authorized() });
  const told = await response.json();
  if (!response.ok) throw new Error(told.problem);
  tellAsked(told.asked);
  return told.actions;
}

function follow() {
  keeper.log = data.work.state.log;
  keeper.seen = data.work.state.round;
  keeper.asked = data.work.asked;
  for (const done of keeper.log) if (done.undoes) keeper.undone.add(done.undoes);
  setInterval(async () => {
    if (document.hidden) return;
    try {
      await keeper.busy;
      const news = (await changes()).filter((one) => one.round > keeper.seen);
      if (!news.length) return;
      takeIn(news);
      const others = news.filter((one) => one.client !== keeper.client).length;
      if (others) say(others + (others === 1 ? ' change' : ' changes') + ' by someone else.');
      refresh();
    } catch (error) {
      warn('The server is not responding. Confirmed actions are saved on disk; restart it, and reload this page.');
    }
  }, 2000);
}

// Predict again: the commands run on the server; the page shows the current step, and then the changes.
async function askAgain() {
  if (!isServed) { say('Predicting again requires the server: labelkit label --index STORE --serve.'); return; }
  if (await ask('ask', {})) say('Predicting again from the labels so far.');
}

async function tellAsked(asked) {
  const { number, state } = keeper.asked;
  keeper.asked = asked;
  ui.asking.textContent = asked.state === 'running' ? 'Predicting again: ' + asked.step + ' …' : '';
  if (asked.number === number && asked.state === state) return;
  if (asked.state === 'failed') warn('Predicting again failed: ' + asked.step);
  if (asked.state !== 'done') return;
  const before = expectedRight();
  const fresh = await (await fetch('/api/session', { headers: authorized() })).json();
  data.work = fresh.work;
  data.measure = fresh.measure;
  data.groups = fresh.groups;
  columns.confidence.set(new Float32Array(bytes(fresh.columns.confidence)));
  columns.expected = new Float32Array(bytes(fresh.columns.expected));
  columns.choice = new Int16Array(bytes(fresh.columns.choice));
  takeIn(await changes());
  refresh();
  showChanged(asked.changed, before);
}

function showChanged({ moved, groups }, before) {
  const after = expectedRight();
  dialog('asked-text').textContent = images(moved) + ' moved to another group. Your decisions are unchanged.'
    + (after && before && after !== before ? ' Before: ' + before + '; now: ' + after + '.' : after ? ' ' + after.replace(/^e/, 'E') + '.' : '');
  dialog('asked-rows').replaceChildren(...groups.map((one) => element('tr', {}, element('th', { scope: 'row' }, element('bdi', {}, one.name)),
    ...[one.before, one.after, one.came, one.left].map((value) => element('td', { class: 'num' }, value)))));
  say('Predicted again: ' + images(moved) + ' moved to another group.');
  if (!document.querySelector('dialog[open]')) askIn(dialog('asked'));
}
