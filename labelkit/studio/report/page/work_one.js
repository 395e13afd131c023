// One by one: the suggested images, large, with the likely classes on the number keys.
const one = { box: document.getElementById('work-one'), picture: document.getElementById('work-one-picture'), list: document.getElementById('work-one-answers'),
  title: document.getElementById('work-one-title'), why: document.getElementById('work-one-why'), progress: document.getElementById('work-one-progress'),
  say: document.getElementById('work-one-say'), queue: [], at: 0, answers: [], skipped: new Set() };
const ANSWERS = 5;

async function openOne() {
  const isOpen = ({ image }) => !work.hand[image] && !work.rejected[image] && !one.skipped.has(image);
  if (!one.queue.some(isOpen)) {
    one.queue = (await suggestedNow()).map(([image, why]) => ({ image, why })).filter(isOpen);
    if (!one.queue.length) one.queue = membersOfView({ kind: 'doubtful' }).map((image) => ({ image, why: 'doubtful' })).filter(isOpen).slice(0, 30);
    if (!one.queue.length) one.queue = [...one.skipped].map((image) => ({ image, why: 'skipped before' })).filter(({ image }) => !work.hand[image] && !work.rejected[image]);
  }
  if (!one.queue.length) { say('No suggestions: every image is labeled, or similar to a labeled image.'); return; }
  one.at = Math.max(0, one.queue.findIndex(isOpen));
  one.box.showModal();
  drawOne();
}

// A server suggests images from the labels so far; a file contains the suggestions from when it was written.
async function suggestedNow() {
  if (!isServed) return data.work.suggested;
  say('Choosing images …');
  const response = await fetch('/api/suggested?skip=' + [...one.skipped].join(), { headers: authorized() }).catch(() => null);
  if (!response || !response.ok) { warn('The server is not responding. Restart it, and reload this page.'); return []; }
  say('');
  return (await response.json()).suggested;
}

function likelyNames(image) {
  const found = [];
  for (let i = 0; i < data.work.perImage; i++) {
    const group = columns.choice[image * data.work.perImage + i];
    if (group < 0) continue;
    const name = work.groupLabels[group] || (isKnown(group) ? work.groupNames[group] : '');
    if (name && !found.includes(name) && !isRefused(image, name)) found.push(name);
  }
  for (const name of knownNames()) if (found.length < ANSWERS && !found.includes(name) && !isRefused(image, name)) found.push(name);
  return found.slice(0, ANSWERS);
}

function drawOne() {
  const { image, why } = one.queue[one.at];
  one.answers = likelyNames(image);
  const large = element('div', { class: 'one-large', role: 'img', 'aria-label': 'Picture of ' + data.names[image] }, picture(image, true));
  one.picture.replaceChildren(large);
  showLarge(image, large);
  const label = labelOf(image);
  one.title.textContent = data.names[image];
  one.why.textContent = (why ? 'Suggested: ' + why + '. ' : '') + (work.hand[image] ? 'Labeled ' + label + '.' : label ? 'Labeled by its group: ' + label + '.' : '');
  one.list.replaceChildren(...one.answers.map((name, place) => {
    const button = element('button', { type: 'button', class: 'answer' }, element('kbd', {}, place + 1), dot(name), element('bdi', {}, name));
    button.addEventListener('click', () => answerOne(name));
    return button;
  }));
  const done = one.queue.filter(({ image: other }) => work.hand[other] || work.rejected[other]).length;
  const right = expectedRight();
  one.progress.textContent = done + ' of ' + one.queue.length + (right ? '; ' + right : '');
  one.say.textContent = data.names[image] + '. ' + one.why.textContent + ' ' + one.answers.map((name, place) => place + 1 + ' ' + name).join(', ');
}

function stepOne(step) {
  const to = one.at + step;
  if (to >= one.queue.length) { one.box.close(); say('That was the last suggested image.'); return; }
  one.at = Math.max(0, to);
  drawOne();
}

// One at a time: a key pressed while an action is being saved would apply to the same image.
async function actOne(kind, steps, words) {
  if (one.busy) return;
  one.busy = true;
  try { if (await act(kind, steps, words)) stepOne(1); } finally { one.busy = false; }
}

async function answerOne(name) {
  const { image } = one.queue[one.at];
  await actOne('label', [{ do: 'label', rows: [image], name }], data.names[image] + ' labeled ' + name + '.');
}

async function otherOne() {
  const name = await askName('Label this image', '');
  if (name) await answerOne(name);
}

// None of the likely classes: they are marked as wrong, and the image remains unlabeled.
async function noneOne() {
  const { image } = one.queue[one.at];
  const steps = one.answers.map((name) => ({ do: 'not', rows: [image], name, value: true }));
  if (work.hand[image]) steps.push({ do: 'label', rows: [image], name: null });
  if (work.group[image] >= 0) steps.push({ do: 'group', rows: [image], group: -1 });
  await actOne('none of these', steps, data.names[image] + ' is none of these.');
}

async function rejectOne() {
  const { image } = one.queue[one.at];
  await actOne('reject', [{ do: 'reject', rows: [image], value: true }], data.names[image] + ' rejected.');
}

// Skipped images are not suggested again as long as there are others.
function skipOne() {
  one.skipped.add(one.queue[one.at].image);
  stepOne(1);
}

async function undoOne() {
  await undo();
  const last = keeper.log[keeper.log.length - 1];
  const row = last && last.steps.flatMap((step) => step.rows || [])[0];
  const place = one.queue.findIndex(({ image }) => image === row);
  if (place >= 0) one.at = place;
  drawOne();
}

const ONE_KEYS = { n: otherOne, l: otherOne, '0': noneOne, x: noneOne, r: rejectOne, u: undoOne, s: skipOne, ' ': () => stepOne(1), arrowright: () => stepOne(1), arrowleft: () => stepOne(-1) };

one.box.addEventListener('keydown', (event) => {
  if (event.altKey || event.metaKey || isTyping(event.target) || dialog('ask').open || dialog('like').open) return;
  const key = event.key.toLowerCase();
  if (event.ctrlKey && key !== 'z') return;
  const name = one.answers[Number(key) - 1];
  // space presses the button that has the focus
  if (key === ' ' && event.target.matches('button')) return;
  if (event.ctrlKey) undoOne();
  else if (name) answerOne(name);
  else if (key in ONE_KEYS) ONE_KEYS[key]();
  else return;
  event.preventDefault();
  event.stopPropagation();
});
one.box.addEventListener('close', () => refresh(true));
for (const button of document.querySelectorAll('[data-one]')) button.addEventListener('click', () => ONE_KEYS[button.dataset.one]());
