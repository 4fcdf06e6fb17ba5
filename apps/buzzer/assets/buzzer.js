// What the pages do without, and do better with: new posts as they come, the characters that are left, times as they are where you are, and one
// post for two presses.
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
    const over = Array.from(area.value.trim().replace(/\n(\s*\n){2,}/g, '\n\n')).length - most;
    left.textContent = over > 0 ? `${over} too many` : `${-over} left`;
    left.classList.toggle('over', over > 0);
    button.disabled = over > 0;
  };
  area.addEventListener('input', count);
  count();
}

// A form that is sent is not sent again by a second press. Whoever comes back to the page may send it anew.
function sendOnce() {
  const buttons = (root) => root.querySelectorAll('button');
  addEventListener('submit', (event) => {
    if (event.target.method === 'post') buttons(event.target).forEach((button) => { button.disabled = true; });
  });
  addEventListener('pageshow', () => {
    for (const form of document.querySelectorAll('form[method="post"]')) buttons(form).forEach((button) => { button.disabled = false; });
    document.querySelector('textarea[data-most]')?.dispatchEvent(new Event('input'));
  });
}

const WAIT_MS_MIN = 1000;
const WAIT_MS_MAX = 60000;
// What is answered where nobody is signed in.
const SIGNED_OUT = 401;

function follow(timeline) {
  const news = document.getElementById('news');
  let isAsking = false;
  let isStale = false;
  let isSignedOut = false;
  const refresh = async () => {
    isStale = true;
    if (isAsking) return;
    isAsking = true;
    while (isStale) {
      isStale = false;
      try {
        const answer = await fetch('/timeline', { credentials: 'same-origin' });
        if (answer.status === SIGNED_OUT) { stop(); break; }
        if (!answer.ok) break;
        const known = new Set(Array.from(timeline.querySelectorAll('.post'), (post) => post.id));
        timeline.innerHTML = await answer.text();
        showTimes(timeline);
        // Where a post was deleted, an older one has come in behind those that were here.
        const posts = Array.from(timeline.querySelectorAll('.post'));
        const last = posts.findLastIndex((post) => known.has(post.id));
        const fresh = posts.filter((post, index) => !known.has(post.id) && (last < 0 || index < last));
        fresh.forEach((post) => post.classList.add('fresh'));
        news.textContent = fresh.length === 1 ? 'One new post' : fresh.length > 1 ? `${fresh.length} new posts` : '';
      } catch {
        break; // The stream begins anew when the server is back, and says so.
      }
    }
    isAsking = false;
  };
  let events;
  let again;
  let wait = WAIT_MS_MIN;
  const open = () => {
    const stream = new EventSource('/live');
    events = stream;
    // Each stream tells of the timeline as it begins, so that nothing is missed between this page and it, or while it was broken off.
    stream.addEventListener('timeline', async () => {
      wait = WAIT_MS_MIN;
      await refresh();
      // It may have been closed meanwhile.
      if (events === stream) timeline.dataset.live = 'open';
    });
    // A browser tries again by itself where a stream breaks off, and never where the answer was no stream: the server was too busy, perhaps.
    stream.addEventListener('error', () => {
      if (events !== stream || stream.readyState !== EventSource.CLOSED) return;
      timeline.dataset.live = 'closed';
      again = setTimeout(open, wait * (0.75 + Math.random() / 4));
      wait = Math.min(wait * 2, WAIT_MS_MAX);
      // A stream does not say why it was refused, and this does.
      refresh();
    });
  };
  const close = () => {
    clearTimeout(again);
    events?.close();
    events = undefined;
  };
  // Nothing more is asked for then. The link is to a page that asks for the password.
  const stop = () => {
    isSignedOut = true;
    close();
    timeline.dataset.live = 'signed-out';
    const link = Object.assign(document.createElement('a'), { href: '/', textContent: 'Sign in' });
    news.classList.replace('hidden', 'wrong');
    news.replaceChildren('You are signed out. ', link, ' to see new posts. What you have written is kept if you press Post.');
  };
  // A page that nobody looks at has no stream: a browser has six connections to a server for all its pages. The stream says what was missed as it begins.
  const toggle = () => {
    if (isSignedOut) return;
    close();
    timeline.dataset.live = 'closed';
    if (!document.hidden) open();
  };
  document.addEventListener('visibilitychange', toggle);
  toggle();
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => { if (event.persisted) location.reload(); });
}

showTimes(document);
sendOnce();
const area = document.querySelector('textarea[data-most]');
if (area) countCharacters(area);
const timeline = document.querySelector('#timeline[data-live]');
if (timeline) follow(timeline);
