// Last: start labeling; light and dark theme; printing.
openWork();

const theme = document.getElementById('theme');
function useTheme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  document.dispatchEvent(new CustomEvent('recolor'));
}
theme.addEventListener('change', () => {
  useTheme(theme.value);
  // a browser may not store anything for files
  try { localStorage.setItem('labelkit-theme', theme.value); } catch (error) { /* then the theme is not remembered */ }
});
try {
  const kept = localStorage.getItem('labelkit-theme');
  if (kept === 'light' || kept === 'dark') { theme.value = kept; useTheme(kept); }
} catch (error) { /* as above */ }
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => document.dispatchEvent(new CustomEvent('recolor')));

// For printing, thumbnails outside the view are also drawn, while the page is idle.
function paintSome() {
  const left = document.querySelectorAll('canvas[data-draw]:not([data-done])');
  if (!left.length) { document.documentElement.dataset.painted = '1'; return; }
  Promise.all([...left].slice(0, 32).map(paint)).then(() => setTimeout(paintSome, 30));
}
document.documentElement.dataset.ready = '1';
setTimeout(paintSome, 200);
