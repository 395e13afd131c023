// The rest: single images in lists, search by name, light and dark, print.
for (const place of document.querySelectorAll('.one')) place.append(tile(Number(place.dataset.image), ''));
for (const box of document.querySelectorAll('#copies .tiles')) fill(box, numbers(box.dataset.images), box.dataset.kind);

const FOUND_AT_MOST = 60;
const find = { text: document.getElementById('find-text'), count: document.getElementById('find-count'), box: document.getElementById('find-tiles') };
let waiting = 0;

function search() {
  const words = find.text.value.trim().toLowerCase();
  find.box.replaceChildren();
  if (!words) { find.count.textContent = ''; return; }
  const found = [];
  for (let i = 0; i < data.n; i++) if (data.names[i].toLowerCase().includes(words)) found.push(i);
  fill(find.box, found.slice(0, FOUND_AT_MOST), 'named');
  find.count.textContent = found.length + ' found' + (found.length > FOUND_AT_MOST ? ', the first ' + FOUND_AT_MOST + ' shown' : '');
}

find.text.addEventListener('input', () => { clearTimeout(waiting); waiting = setTimeout(search, 150); });
document.getElementById('find').addEventListener('submit', (event) => { event.preventDefault(); search(); });

const theme = document.getElementById('theme');
function useTheme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  document.dispatchEvent(new CustomEvent('recolor'));
}
theme.addEventListener('change', () => {
  useTheme(theme.value);
  // a browser may keep nothing for files
  try { localStorage.setItem('labelkit-theme', theme.value); } catch (error) { /* then it is chosen again next time */ }
});
try {
  const kept = localStorage.getItem('labelkit-theme');
  if (kept === 'light' || kept === 'dark') { theme.value = kept; useTheme(kept); }
} catch (error) { /* as above */ }
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => document.dispatchEvent(new CustomEvent('recolor')));

// Paper has no view to come into: what is there is drawn while nothing else is to be done.
function paintSome() {
  const left = document.querySelectorAll('canvas[data-draw]:not([data-done])');
  if (!left.length) { document.documentElement.dataset.painted = '1'; return; }
  Promise.all([...left].slice(0, 32).map(paint)).then(() => setTimeout(paintSome, 30));
}
document.documentElement.dataset.ready = '1';
setTimeout(paintSome, 200);
