// The panel: the selected image with its properties, and its nearest neighbors.
const panel = {
  box: document.getElementById('panel'),
  body: document.getElementById('panel-body'),
  hint: document.getElementById('panel-hint'),
  say: document.getElementById('panel-say'),
  close: document.getElementById('panel-close'),
  back: document.getElementById('panel-back'),
  chosen: -1,
  near: [],
  before: [],
  opener: null,
};

function facts(image) {
  const rows = [['label', labelOf(image)], ['group', groupName(image)]];
  const value = columns.confidence[image];
  if (Number.isFinite(value)) rows.push([data.measure, value.toFixed(3)]);
  if (columns.runnerUp[image] >= 0) rows.push(['next group', data.groups[columns.runnerUp[image]].name]);
  rows.push(['class', className(image) ? className(image) + (columns.usable[image] ? ' (label available for training)' : '') : '']);
  if (columns.split[image] >= 0) rows.push(['split', data.splits[columns.split[image]]]);
  const list = element('dl', {});
  for (const [name, text] of rows) {
    if (text) list.append(element('dt', {}, name), element('dd', {}, element('bdi', {}, text)));
  }
  return list;
}

async function choose(image, opener, isBack) {
  if (!isBack && panel.chosen >= 0 && panel.chosen !== image) panel.before.push(panel.chosen);
  if (opener && !panel.box.contains(opener)) panel.opener = opener;
  const hadFocus = panel.body.contains(document.activeElement);
  panel.chosen = image;
  const near = await neighborsOf(image);
  if (panel.chosen !== image) return;  // another image was selected in the meantime
  panel.near = near;
  const heading = element('h3', { tabindex: '-1', id: 'panel-name' }, element('bdi', {}, data.names[image]));
  const large = element('div', { class: 'large', role: 'img', 'aria-label': 'Picture of ' + data.names[image] }, picture(image, true));
  showLarge(image, large);
  const box = element('div', { class: 'tiles', role: 'group', 'aria-label': 'Nearest images' });
  const same = near.filter((one) => columns.label[one.image] >= 0 && columns.label[one.image] === columns.label[image]).length;
  const known = near.filter((one) => columns.label[one.image] >= 0).length;
  for (const { image: other, score } of near) {
    const odd = columns.label[other] >= 0 && columns.label[image] >= 0 && columns.label[other] !== columns.label[image];
    const text = data.metric + ' ' + score.toPrecision(3);
    box.append(tile(other, [score.toPrecision(3), (odd ? '≠ ' : '') + (className(other) || groupName(other))], text));
  }
  const words = near.length === 0 ? 'No neighbors: its embedding is all zeros, or there are no other images.'
    : columns.label[image] >= 0 && known ? same + ' of ' + known + ' neighbors with a known class share its class.' : '';
  panel.body.replaceChildren(heading, element('div', { class: 'chosen' }, large, facts(image)),
    element('h3', {}, 'Nearest by ' + data.metric), element('p', { class: 'small' }, words), box);
  settle(box);
  panel.body.hidden = panel.close.hidden = false;
  panel.hint.hidden = true;
  panel.back.hidden = panel.before.length === 0;
  panel.box.classList.add('open');
  panel.say.textContent = describe(image) + '. ' + near.length + ' neighbors shown. ' + words;
  for (const one of document.querySelectorAll('.tile[aria-pressed]')) one.removeAttribute('aria-pressed');
  for (const one of document.querySelectorAll('.tile[data-image="' + image + '"]')) one.setAttribute('aria-pressed', 'true');
  panel.box.scrollTop = 0;
  // when moving from neighbor to neighbor, keep the focus in the panel
  if (hadFocus) heading.focus();
  document.dispatchEvent(new CustomEvent('chosen'));
}

function closePanel() {
  if (panel.chosen < 0) return;
  const hadFocus = panel.box.contains(document.activeElement);
  panel.chosen = -1;
  panel.before = [];
  panel.body.replaceChildren();
  panel.body.hidden = panel.close.hidden = panel.back.hidden = true;
  panel.hint.hidden = false;
  panel.box.classList.remove('open');
  panel.say.textContent = 'Closed.';
  for (const one of document.querySelectorAll('.tile[aria-pressed]')) one.removeAttribute('aria-pressed');
  if (hadFocus && panel.opener && panel.opener.isConnected) panel.opener.focus();
  document.dispatchEvent(new CustomEvent('chosen'));
}

document.addEventListener('click', (event) => {
  const found = event.target.closest('.tile');
  if (found) choose(Number(found.dataset.image), found, false);
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !document.querySelector('dialog[open]')) closePanel();
});
panel.close.addEventListener('click', closePanel);
panel.back.addEventListener('click', async () => {
  await choose(panel.before.pop(), null, true);
  document.getElementById('panel-name').focus();
});

