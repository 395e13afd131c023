// Groups: tiles are created when a group is opened, and all tiles of a group on request.
const AT_ONCE = 240;

function openGroup(details) {
  if (details.dataset.filled) return;
  details.dataset.filled = '1';
  for (const box of details.querySelectorAll('.tiles[data-images]')) fill(box, numbers(box.dataset.images), box.dataset.kind);
}

function membersOf(group) {
  const found = [];
  for (let i = 0; i < data.n; i++) if (columns.group[i] === group) found.push(i);
  // most confident first; NaN last
  const key = (i) => (Number.isFinite(columns.confidence[i]) ? columns.confidence[i] : -Infinity);
  return found.sort((a, b) => key(b) - key(a) || a - b);
}

for (const details of document.querySelectorAll('details.group')) {
  details.addEventListener('toggle', () => { if (details.open) openGroup(details); });
}

for (const button of document.querySelectorAll('button.more')) {
  const group = Number(button.dataset.more);
  const box = document.querySelector('.tiles[data-all="' + group + '"]');
  let members = null;
  button.addEventListener('click', () => {
    members = members || membersOf(group);
    const start = box.childElementCount;
    fill(box, members.slice(start, start + AT_ONCE), 'typical');
    box.children[start].focus();
    const left = members.length - box.childElementCount;
    button.textContent = 'Show ' + Math.min(AT_ONCE, left) + ' more of ' + members.length;
    button.hidden = left === 0;
  });
}

const OPEN_AT_MOST = 200;
const openAll = document.getElementById('groups-open');
if (openAll) {
  const every = [...document.querySelectorAll('details.group')];
  openAll.textContent = every.length > OPEN_AT_MOST ? 'Open the first ' + OPEN_AT_MOST : 'Open all';
  openAll.addEventListener('click', () => every.slice(0, OPEN_AT_MOST).forEach((one) => { one.open = true; }));
  document.getElementById('groups-close').addEventListener('click', () => every.forEach((one) => { one.open = false; }));
}

for (const strip of document.querySelectorAll('.strip')) {
  for (const image of numbers(strip.dataset.images)) strip.append(picture(image));
}

