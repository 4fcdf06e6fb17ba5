// What the pages do without, and do better with: new posts as they come, the characters that are left, and times as they are where you are.
'use strict';

function showTimes(root) {
  for (const time of root.querySelectorAll('time[datetime]')) {
    const then = new Date(time.dateTime);
    if (!Number.isNaN(then.getTime())) {
      time.title = time.textContent;
      time.textContent = then.toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' });
    }
  }
}

function countCharacters(area) {
  const most = Number(area.dataset.most);
  const left = document.getElementById('left');
  const button = area.form.querySelector('button');
  const count = () => {
    const over = Array.from(area.value.trim()).length - most;
    left.textContent = over > 0 ? `${over} too many` : `${-over} left`;
    left.classList.toggle('over', over > 0);
    button.disabled = over > 0;
  };
  area.addEventListener('input', count);
  count();
}

function follow(timeline) {
  const news = document.getElementById('news');
  let isAsking = false;
  let isStale = false;
  const refresh = async () => {
    isStale = true;
    if (isAsking) return;
    isAsking = true;
    while (isStale) {
      isStale = false;
      try {
        const answer = await fetch('/timeline', { credentials: 'same-origin' });
        if (!answer.ok) break;
        const known = new Set(Array.from(timeline.querySelectorAll('.post'), (post) => post.id));
        timeline.innerHTML = await answer.text();
        showTimes(timeline);
        const fresh = Array.from(timeline.querySelectorAll('.post')).filter((post) => !known.has(post.id));
        fresh.forEach((post) => post.classList.add('fresh'));
        news.textContent = fresh.length === 1 ? 'One new post' : fresh.length > 1 ? `${fresh.length} new posts` : '';
      } catch {
        break; // The stream begins anew when the server is back, and says so.
      }
    }
    isAsking = false;
  };
  const events = new EventSource('/live');
  // Each stream tells of the timeline as it begins, so that nothing is missed between this page and it, or while it was broken off.
  events.addEventListener('timeline', async () => {
    await refresh();
    timeline.dataset.live = 'open';
  });
  addEventListener('pagehide', () => events.close());
  addEventListener('pageshow', (event) => { if (event.persisted) location.reload(); });
}

showTimes(document);
const area = document.querySelector('textarea[data-most]');
if (area) countCharacters(area);
const timeline = document.querySelector('#timeline[data-live]');
if (timeline) follow(timeline);
