// Individual images in lists, and search by name.
for (const place of document.querySelectorAll('.one')) place.append(tile(Number(place.dataset.image), ''));

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
