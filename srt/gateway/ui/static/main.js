/** The page: its tabs, its keys, and what the server says of itself. */

import { getJson } from './api.js';
import { mountChat } from './chat/view.js';
import { byId, el } from './dom.js';
import { Feed } from './feed.js';
import { Keys } from './keys.js';
import { mountPrograms } from './programs/view.js';
import { mountPulse } from './pulse/view.js';
import { mountTree } from './tree/view.js';

const TITLES = { chat: 'Chat', tree: 'Tree', pulse: 'Pulse', programs: 'Programs' };
const WATCHED = new Set(['tree', 'pulse', 'programs']);

const keys = new Keys();
const feed = new Feed(keys);
/** @type {import('./types.js').Context} */
const context = { keys, feed, announce };
/** @type {Record<string, import('./types.js').View>} */
const views = {
  chat: mountChat(byId('chat'), context),
  tree: mountTree(byId('tree'), context),
  pulse: mountPulse(byId('pulse'), context),
  programs: mountPrograms(byId('programs'), context),
};
let shown = '';

/** @param {string} text */
function announce(text) {
  byId('announcer').textContent = text;
}

for (const [name, title] of Object.entries(TITLES)) {
  const attrs = { id: `tab-${name}`, type: 'button', role: 'tab', 'aria-controls': name };
  byId('tabs').append(el('button', { attrs, on: { click: () => show(name) } }, title));
}
byId('tabs').addEventListener('keydown', (event) => {
  const names = Object.keys(TITLES);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = names[(names.indexOf(shown) + step + names.length) % names.length];
  show(next);
  byId(`tab-${next}`).focus();
});

/** @param {string} name */
function show(name) {
  if (name === shown) return;
  if (shown) views[shown].hidden();
  shown = name;
  for (const each of Object.keys(TITLES)) {
    byId(each).hidden = each !== name;
    const tab = byId(`tab-${each}`);
    tab.setAttribute('aria-selected', String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
  }
  if (location.hash !== `#/${name}`) history.replaceState(null, '', `${location.pathname}#/${name}`);
  views[name].shown();
  watch();
}

/** The feed runs while somebody can see what it tells. */
function watch() {
  if (WATCHED.has(shown) && document.visibilityState === 'visible') feed.start();
  else feed.stop();
}

function showStatus() {
  const { state, message } = feed.status;
  const words = { off: '', connecting: 'connecting …', live: 'live', refused: message, lost: 'connection lost; trying again …' };
  byId('status').textContent = words[state];
  if (state === 'refused') announce(message);
}

const dialog = /** @type {HTMLDialogElement} */ (byId('keys'));
const adminField = /** @type {HTMLInputElement} */ (byId('admin-key'));
const apiField = /** @type {HTMLInputElement} */ (byId('api-key'));
byId('open-keys').addEventListener('click', () => {
  adminField.value = keys.adminKey;
  apiField.value = keys.apiKey;
  dialog.returnValue = ''; // it keeps the one of the last time
  dialog.showModal();
});
dialog.addEventListener('close', () => {
  if (dialog.returnValue === 'save') keys.set(adminField.value, apiField.value);
});

async function showModel() {
  try {
    const info = await getJson('/get_model_info', keys.chatHeaders());
    byId('model').textContent = info.served_model_name;
  } catch {
    byId('model').textContent = '';
  }
}

feed.addEventListener('status', showStatus);
document.addEventListener('visibilitychange', watch);
keys.addEventListener('changed', () => {
  feed.stop();
  watch();
  showModel();
});
window.addEventListener('hashchange', () => {
  if (keys.takeFromAddress()) history.replaceState(null, '', `#/${shown}`);
  const name = location.hash.slice(2);
  if (Object.hasOwn(TITLES, name)) show(name);
});
showModel();
const wanted = location.hash.slice(2);
show(Object.hasOwn(TITLES, wanted) ? wanted : 'chat');
