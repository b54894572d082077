// Markdown to HTML: headings, lists, emphasis, code and links.
'use strict';
const crypto = require('crypto');
const {numbers, serve} = require('./serve.js');

function sourceOf(seed) {
  const draw = numbers(seed);
  const lines = [];
  for (let at = 0; at < 60 + seed % 8 * 40; at++) {
    lines.push('#'.repeat(1 + at % 3) + ' Part ' + draw(), '');
    lines.push('Some *text* of **' + draw() + '** words & `code<' + draw() + '>`.', '');
    for (let item = 0; item < 3; item++)
      lines.push('- see [page ' + draw() + '](/page/' + item + ')');
    lines.push('');
  }
  return lines.join('\n');
}

const escaped = text => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

function inline(text) {
  return escaped(text)
    .replace(/`([^`]+)`/g, '<code>$1</code>')
    .replace(/\*\*([^*]+)\*\*/g, '<strong>$1</strong>')
    .replace(/\*([^*]+)\*/g, '<em>$1</em>')
    .replace(/\[([^\]]+)\]\(([^)]+)\)/g, '<a href="$2">$1</a>');
}

function block(text) {
  const heading = /^(#{1,6}) (.*)$/.exec(text);
  if (heading)
    return `<h${heading[1].length}>${inline(heading[2])}</h${heading[1].length}>`;
  if (text.startsWith('- '))
    return '<ul>' + text.split('\n').map(line => `<li>${inline(line.slice(2))}</li>`).join('') + '</ul>';
  return `<p>${inline(text)}</p>`;
}

serve(seed => {
  const html = sourceOf(seed).split('\n\n').map(text => text.trim()).filter(text => text).map(block).join('\n');
  return {length: html.length, digest: crypto.createHash('sha256').update(html).digest('hex')};
});
