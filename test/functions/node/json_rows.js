// Parses and writes JSON: orders of customers, summed up by customer.
'use strict';
const {numbers, serve} = require('./serve.js');

function textOf(seed) {
  const draw = numbers(seed);
  const rows = [];
  for (let at = 0; at < 600 + seed % 7 * 300; at++)
    rows.push({id: at, customer: {name: 'c' + draw() % 30, city: 'x'.repeat(at % 40)}, price: draw(), tags: ['a', String(at)]});
  return JSON.stringify({rows});
}

serve(seed => {
  const sums = new Map();
  for (const row of JSON.parse(textOf(seed)).rows)
    sums.set(row.customer.name, (sums.get(row.customer.name) || 0) + row.price);
  return Object.fromEntries(sums);
});
