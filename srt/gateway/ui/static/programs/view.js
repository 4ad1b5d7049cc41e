/** Runs of programs. */
/** @param {HTMLElement} root @param {import('../types.js').Context} context @returns {import('../types.js').View} */
export function mountPrograms(root, context) {
  root.append('soon', String(context.feed.runs.size));
  return { shown() {}, hidden() {} };
}
