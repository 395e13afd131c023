// Last: the work begins; light and dark; print.
openWork();

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
