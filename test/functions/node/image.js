// A picture in a buffer: shrunk by half (means of four), turned by 90 degrees, and its histogram.
'use strict';
const {numbers, serve} = require('./serve.js');

function pictureOf(seed) {
  const picture = {width: 256 + seed % 5 * 64, height: 192 + seed % 3 * 64};
  picture.data = Buffer.alloc(picture.width * picture.height);
  for (let y = 0; y < picture.height; y++)
    for (let x = 0; x < picture.width; x++)
      picture.data[y * picture.width + x] = x * 3 + y * 7 + seed;
  return picture;
}

function halved({width, height, data}) {
  const small = {width: width / 2, height: height / 2, data: Buffer.alloc(width * height / 4)};
  for (let y = 0; y < small.height; y++)
    for (let x = 0; x < small.width; x++) {
      const at = 2 * y * width + 2 * x;
      small.data[y * small.width + x] = (data[at] + data[at + 1] + data[at + width] + data[at + width + 1]) >> 2;
    }
  return small;
}

function turned({width, height, data}) {
  const other = {width: height, height: width, data: Buffer.alloc(width * height)};
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      other.data[x * height + (height - 1 - y)] = data[y * width + x];
  return other;
}

serve(seed => {
  const picture = turned(halved(pictureOf(seed)));
  const histogram = new Array(16).fill(0);
  for (const level of picture.data)
    histogram[level >> 4]++;
  const draw = numbers(seed);
  const spots = Array.from({length: 16}, () => picture.data[draw() % picture.data.length]);
  return {size: [picture.width, picture.height], histogram, spots};
});
