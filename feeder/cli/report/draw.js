// Draws three pictures of `data`: the timeline, what each step waited for, memory. Times in µs.
const data = JSON.parse(document.getElementById("data").textContent);
const NS = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

function put(parent, name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}
function time(us) {
  const size = Math.abs(us);
  if (size < 1e3) return `${Math.round(us)} µs`;
  if (size < 1e6) return `${+(us / 1e3).toPrecision(3)} ms`;
  return `${+(us / 1e6).toPrecision(4)} s`;
}
function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 999.5 && unit < 4) { count /= 1024; unit++; }
  return `${+count.toPrecision(3)} ${units[unit]}`;
}
function nice(span, count, base) {  // a round distance between so many marks
  const rough = span / count, power = base === 2 ? 2 ** Math.floor(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
  return (base === 2 ? [1, 2] : [1, 2, 5, 10]).map((n) => n * power).find((n) => n >= rough) || rough;
}
const name = (stage) => stage.replace("_", " ");
const colour = (stage) => `var(--${stage})`;

// One box of words, beside the pointer or what has the focus.
const tip = $("tip");
function tell(event, lines) {
  tip.replaceChildren();
  lines.forEach((line, at) => {
    const node = document.createElement(at ? "div" : "b");
    node.textContent = line;
    tip.append(node);
  });
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const below = event.clientY + 18 + box.height > innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}
function hush() { tip.hidden = true; }
addEventListener("scroll", hush, { passive: true });

// ---- the timeline ----
const svg = $("timeline"), overview = $("overview");
const first = Math.min(0, ...data.spans.map((span) => span[3])), last = Math.max(1, ...data.spans.map((span) => span[4]));
const whole = [first, last + (last - first) * 0.005];
let view = [...whole], drawn = 0;
const user = data.lanes.indexOf("user"), wait = data.stages.indexOf("wait");
const rows = data.lanes.flatMap((lane, at) => {
  const row = { name: lane, lane: at }, before = data.lanes.includes("place") ? "place" : "user";
  return data.ready.length && lane === before ? [{ name: "ready", lane: -1 }, row] : [row];
});
const laneHeight = rows.length > 12 ? 18 : 26, gap = 4, top = 20;
const byRow = rows.map((row) => data.spans.filter((span) => span[0] === row.lane).sort((a, b) => a[3] - b[3]));
const most = Math.max(1, ...data.ready.map((entry) => entry[1]));
const bodies = new Map();  // step → its rectangles

function left() { return svg.clientWidth < 560 ? 66 : 92; }
function scale() { return (svg.clientWidth - left() - 2) / (view[1] - view[0]); }
function x(at) { return left() + (at - view[0]) * scale(); }

function draw() {
  const width = svg.clientWidth, height = top + rows.length * (laneHeight + gap) + 2, edge = left();
  svg.replaceChildren();
  bodies.clear();
  drawn = 0;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;
  const distance = nice(view[1] - view[0], Math.max(4, (width - edge) / 110));
  for (let at = Math.ceil(view[0] / distance) * distance; at <= view[1]; at += distance) {
    put(svg, "line", { class: "grid", x1: x(at), x2: x(at), y1: top - 4, y2: height });
    const anchor = x(at) > width - 30 ? "end" : x(at) < edge + 20 ? "start" : "middle";
    put(svg, "text", { x: x(at), y: 11, "text-anchor": anchor }, at ? time(at) : "0");
  }
  rows.forEach((row, number) => {
    const y = top + number * (laneHeight + gap);
    const label = row.lane < 0 ? "ready" : row.name;
    put(svg, "text", { class: "name", x: 0, y: y + laneHeight / 2 + 4 }, label === "this process" && edge < 80 ? "here" : label);
    put(svg, "rect", { class: "lane", x: edge, y, width: width - edge, height: laneHeight, rx: 3 });
    row.lane < 0 ? area(y, edge, width) : spans(byRow[number], y, edge, width);
  });
  for (const [at, lane] of data.restarts) {
    if (at < view[0] || at > view[1]) continue;
    const y = top + rows.findIndex((row) => row.name === lane) * (laneHeight + gap);
    put(svg, "line", { class: "mark", x1: x(at), x2: x(at), y1: Math.max(y, top) - 3, y2: (y < top ? height : y + laneHeight + 3) });
    put(svg, "text", { class: "died", x: x(at) + 3, y: Math.max(y, top) + 10 }, "✕").died = lane;
  }
  svg.dataset.drawn = drawn;
  drawWindow();
}
function spans(list, y, edge, width) {
  let end = -1, stageBefore = -1;
  for (const span of list) {
    const [, stage, step, began, ended] = span;
    if (ended < view[0]) continue;
    if (began > view[1]) break;
    const from = Math.max(edge, x(began)), to = Math.min(width, x(ended));
    if (to - end < 0.4 && stage === stageBefore) continue;  // nobody could see it
    end = to;
    stageBefore = stage;
    const body = put(svg, "rect", {
      class: "span", x: from.toFixed(2), y, width: Math.max(0.6, to - from - (to - from > 3 ? 0.6 : 0)).toFixed(2),
      height: laneHeight, rx: to - from > 8 ? 3 : 0, fill: colour(data.stages[stage]),
    });
    body.span = span;
    if (!bodies.has(step)) bodies.set(step, []);
    bodies.get(step).push(body);
    drawn++;
    if (to - from > 9 + 7 * String(step).length && laneHeight > 20)
      put(svg, "text", { class: "on", x: (from + to) / 2, y: y + laneHeight / 2 + 4, "text-anchor": "middle" }, step);
  }
}
function area(y, edge, width) {  // how many batches lie ready
  const level = (count) => y + laneHeight - (count / most) * (laneHeight - 3);
  let count = 0, path = "";
  for (const [at, next] of data.ready) {
    if (at <= view[0]) { count = next; continue; }
    if (at > view[1]) break;
    if (!path) path = `M${edge},${y + laneHeight}V${level(count)}`;
    path += `H${x(at).toFixed(1)}V${level(next).toFixed(1)}`;
    count = next;
  }
  if (!path) path = `M${edge},${y + laneHeight}V${level(count)}`;
  put(svg, "path", { class: "area", d: `${path}H${width}V${y + laneHeight}Z` });
}
function readyAt(at) {
  let low = 0, high = data.ready.length;
  while (low < high) { const mid = (low + high) >> 1; data.ready[mid][0] <= at ? (low = mid + 1) : (high = mid); }
  return low ? data.ready[low - 1][1] : 0;
}
let queued = false;
function show(from, to) {
  const least = 50, size = Math.min(Math.max(to - from, least), whole[1] - whole[0]);
  from = Math.min(Math.max(from, whole[0]), whole[1] - size);
  view = [from, from + size];
  if (!queued) { queued = true; requestAnimationFrame(() => { queued = false; draw(); }); }
}
function zoom(factor, centre = (view[0] + view[1]) / 2) {
  show(centre - (centre - view[0]) * factor, centre + (view[1] - centre) * factor);
}
function pan(share) { const by = share * (view[1] - view[0]); show(view[0] + by, view[1] + by); }
function at(event) { return view[0] + (event.clientX - svg.getBoundingClientRect().left - left()) / scale(); }

$("in").onclick = () => zoom(0.5);
$("out").onclick = () => zoom(2);
$("earlier").onclick = () => pan(-0.5);
$("later").onclick = () => pan(0.5);
$("all").onclick = () => show(...whole);
svg.addEventListener("keydown", (event) => {
  const keys = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), 0: () => show(...whole) };
  if (keys[event.key] && !event.ctrlKey && !event.metaKey) { keys[event.key](); event.preventDefault(); }
});
svg.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 200), at(event));
  else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / svg.clientWidth);
  else return;
  event.preventDefault();
}, { passive: false });
const held = new Map();  // pointers that are down
svg.addEventListener("pointerdown", (event) => {
  held.set(event.pointerId, event.clientX);
  hover(event);
});
svg.addEventListener("pointermove", (event) => {
  if (!held.has(event.pointerId)) { hover(event); return; }
  const before = [...held.values()], moved = event.clientX - held.get(event.pointerId);
  if (held.size === 1 && Math.abs(moved) < 3 && !svg.classList.contains("dragged")) return;
  if (!svg.classList.contains("dragged")) svg.setPointerCapture(event.pointerId);
  svg.classList.add("dragged");
  hush();
  held.set(event.pointerId, event.clientX);
  if (held.size === 1) pan(-moved / (svg.clientWidth - left()));
  else if (held.size === 2) {
    const after = [...held.values()], apart = (pair) => Math.max(20, Math.abs(pair[0] - pair[1]));
    zoom(apart(before) / apart(after), at({ clientX: (after[0] + after[1]) / 2 }));
  }
});
for (const kind of ["pointerup", "pointercancel"]) svg.addEventListener(kind, (event) => {
  held.delete(event.pointerId);
  if (!held.size) svg.classList.remove("dragged");
});
svg.addEventListener("pointerleave", (event) => { if (!held.has(event.pointerId)) { hush(); dim(); } });
function dim(step) {
  for (const [other, list] of bodies) for (const body of list) body.classList.toggle("other", step !== undefined && other !== step);
}
function hover(event) {
  const span = event.target.span;
  dim(span && span[2]);
  const row = Math.floor((event.clientY - svg.getBoundingClientRect().top - top) / (laneHeight + gap));
  if (span) {
    const [lane, stage, step, began, ended] = span;
    tell(event, [`step ${step}: ${name(data.stages[stage])}`, `${data.lanes[lane]}: ${time(ended - began)}`, `from ${time(began)} on`]);
  } else if (event.target.died) {
    tell(event, [`${event.target.died} died, and was replaced`]);
  } else if (rows[row] && rows[row].lane < 0 && at(event) > view[0]) {
    const count = readyAt(at(event));
    tell(event, [`${count} batch${count === 1 ? "" : "es"} ready`, `at ${time(at(event))}`]);
  } else hush();
}

// ---- the whole run, with a window on what the timeline shows ----
let frame;
function drawOverview() {
  const width = overview.clientWidth, edge = left(), factor = (width - edge - 2) / (whole[1] - whole[0]);
  overview.replaceChildren();
  overview.setAttribute("viewBox", `0 0 ${width} 22`);
  put(overview, "text", { class: "name", x: 0, y: 15 }, "all");
  put(overview, "rect", { x: edge - whole[0] * factor, y: 3, width: last * factor, height: 16, fill: colour("step") });
  for (const [lane, stage, , began, ended] of data.spans) {
    const wide = (ended - began) * factor;
    if (lane !== user || stage !== wait || wide < 0.5) continue;  // nobody could see it
    put(overview, "rect", { x: edge + (began - whole[0]) * factor, y: 3, width: wide, height: 16, fill: colour("wait") });
  }
  frame = put(overview, "rect", { class: "window", y: 1, height: 20, rx: 3 });
  drawWindow();
}
function drawWindow() {
  if (!frame) return;
  const edge = left(), factor = (overview.clientWidth - edge - 2) / (whole[1] - whole[0]);
  frame.setAttribute("x", edge + (view[0] - whole[0]) * factor);
  frame.setAttribute("width", Math.max(4, (view[1] - view[0]) * factor));
}
function jump(event) {
  const edge = left(), share = (event.clientX - overview.getBoundingClientRect().left - edge) / (overview.clientWidth - edge - 2);
  const centre = whole[0] + share * (whole[1] - whole[0]), half = (view[1] - view[0]) / 2;
  show(centre - half, centre + half);
}
overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); jump(event); });
overview.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });

// ---- what each step waited for ----
function drawWaits() {
  const chart = $("waits"), width = chart.clientWidth, height = 170, edge = left(), foot = height - 20;
  chart.replaceChildren();
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.style.height = `${height}px`;
  const totals = data.steps.map((entry) => entry[1] + entry[2] + entry[3] + entry[4]);
  const usual = totals.length > 2 ? totals.slice(1) : totals;  // workers start in the first one
  const high = Math.max(1, ...usual) * 1.08, distance = nice(high, 4);
  for (let value = 0; value <= high; value += distance) {
    const y = foot - (value / high) * (foot - 8);
    put(chart, "line", { class: "grid", x1: edge, x2: width, y1: y, y2: y });
    put(chart, "text", { x: edge - 8, y: y + 4, "text-anchor": "end" }, value ? time(value) : "0");
  }
  const each = (width - edge) / Math.max(1, data.steps.length), space = each > 5 ? 1 : 0;
  const marks = Math.max(1, nice(data.steps.length, Math.max(2, width / 90)));
  data.steps.forEach(([step, ...parts], number) => {
    const from = edge + number * each, group = put(chart, "g", {});
    let y = foot;
    parts.forEach((part, kind) => {
      const tall = Math.min((part / high) * (foot - 8), y - 2);
      if (tall <= 0) return;
      y -= tall;
      put(group, "rect", { x: from, y, width: Math.max(0.5, each - space), height: tall, fill: colour(kind === 3 ? "step" : data.waits[kind][0]), class: kind === 3 ? "quiet" : "" });
    });
    if (totals[number] > high) put(chart, "text", { class: "name", x: from + each + 3, y: 12 }, `▲ ${time(totals[number])}`);
    if (step % marks === 0) put(chart, "text", { x: from + each / 2, y: height - 4, "text-anchor": "middle" }, step);
    put(group, "rect", { x: from, y: 0, width: each, height: foot, fill: "transparent" });
    group.addEventListener("pointermove", (event) => tell(event, [
      `step ${step}`,
      ...data.waits.flatMap(([, words], kind) => (parts[kind] ? [`${words}: ${time(parts[kind])}`] : [])),
      `your step: ${time(parts[3])}`,
    ]));
  });
  chart.dataset.drawn = data.steps.length;
  chart.onpointerleave = hush;
}

// ---- memory ----
function drawMemory() {
  const chart = $("memory"), entries = Object.entries(data.memory);
  if (!chart) return;
  const width = chart.clientWidth, height = 150, edge = left(), foot = height - 20;
  chart.replaceChildren();
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.style.height = `${height}px`;
  const high = Math.max(1, ...entries.flatMap(([, samples]) => samples.map((sample) => sample[1]))) * 1.08;
  const distance = nice(high, 3, 2), to = (us) => edge + ((us - whole[0]) / (whole[1] - whole[0])) * (width - edge - 2);
  for (let value = 0; value <= high; value += distance) {
    const y = foot - (value / high) * (foot - 8);
    put(chart, "line", { class: "grid", x1: edge, x2: width, y1: y, y2: y });
    put(chart, "text", { x: edge - 8, y: y + 4, "text-anchor": "end" }, value ? bytes(value) : "0");
  }
  const step = nice(whole[1] - whole[0], Math.max(4, (width - edge) / 110));
  for (let us = Math.ceil(whole[0] / step) * step; us <= whole[1]; us += step)
    put(chart, "text", { x: to(us), y: height - 4, "text-anchor": to(us) > width - 30 ? "end" : to(us) < edge + 20 ? "start" : "middle" }, us ? time(us) : "0");
  for (const [process, samples] of entries) {
    const points = samples.map(([us, count]) => [Math.max(edge, Math.min(width - 2, to(us))), foot - (count / high) * (foot - 8)]);
    points.push([width - 2, points[points.length - 1][1]]);
    put(chart, "polyline", { class: "row", points: points.map((point) => point.map((n) => n.toFixed(1)).join()).join(" "), stroke: colour(process === "parent" ? "step" : process === "slots" ? "place" : "read") });
  }
  chart.onpointermove = (event) => {
    const us = whole[0] + ((event.clientX - chart.getBoundingClientRect().left - edge) / (width - edge - 2)) * (whole[1] - whole[0]);
    const lines = entries.map(([process, samples]) => {
      const before = samples.filter((sample) => sample[0] <= us).pop() || samples[0];
      return `${process}: ${bytes(before[1])}`;
    });
    us < whole[0] ? hush() : tell(event, [`at ${time(us)}`, ...lines.slice(0, 12)]);
  };
  chart.onpointerleave = hush;
}

function all() { draw(); drawOverview(); drawWaits(); drawMemory(); }
// At first without the wait in which workers start; of many steps the last: all were too fine to see.
const asked = data.spans.filter((span) => span[0] === user && span[1] === wait);
if (asked.length > 100) view[0] = asked[asked.length - 60][3];
else if (asked.length > 1) view[0] = Math.max(first, asked[0][4] - 0.06 * (last - asked[0][4]));
all();
let width = svg.clientWidth;
new ResizeObserver(() => {
  if (svg.clientWidth !== width) requestAnimationFrame(all);
  width = svg.clientWidth;
}).observe(svg);
document.documentElement.dataset.drawn = "all";
