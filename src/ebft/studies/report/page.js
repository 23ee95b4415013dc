// Draws the charts and the browser of generations from the data in the page. Texts go in as text, never as HTML.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
let axis = data.axis;

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "circle", "text", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted || 1, base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * base).find(s => s >= raw);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) found.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return found;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit) return +(value / (letter === "k" ? 1e3 : unit)).toPrecision(3) + letter;
  return String(+value.toPrecision(4));
}

// One chart: curves with bands, or single points with bars where `points` is set.
function draw(place, chart) {
  const old = place.querySelector("svg");
  const shown = chart.series.filter(s => !hidden.has(s.name) && s.x[chart.axis || axis]);
  const width = Math.max(260, place.clientWidth - 22), height = chart.tall ? 300 : 210;
  const left = 48, right = 12, top = 8, bottom = 34;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title });
  const xs = shown.flatMap(s => chart.points ? [s.xlow, s.xhigh] : s.x[chart.axis || axis]);
  const ys = shown.flatMap(s => [...s.low, ...s.high]).filter(Number.isFinite);
  if (!xs.length) {
    svg.append(element("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing to show on this axis"));
  } else {
    const scaled = chart.log ? Math.log2 : (v => v);
    let [x0, x1, y0, y1] = [Math.min(...xs.map(scaled)), Math.max(...xs.map(scaled)), Math.min(...ys), Math.max(...ys)];
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    y0 -= pad; y1 += pad;
    if (chart.points) { const p = (x1 - x0 || 1) * 0.12; x0 -= p; x1 += p; }
    const X = v => left + (x1 > x0 ? (scaled(v) - x0) / (x1 - x0) : 0.5) * (width - left - right);
    const Y = v => height - bottom - (v - y0) / (y1 - y0) * (height - top - bottom);
    for (const t of ticks(y0, y1, 5)) {
      svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: Y(t), y2: Y(t) }));
      svg.append(element("text", { x: left - 6, y: Y(t) + 4, "text-anchor": "end" }, short(t)));
    }
    const marks = chart.log ? [...new Set(xs)].sort((a, b) => a - b) : ticks(x0, x1, width < 340 ? 3 : 5);
    for (const t of marks) svg.append(element("text", { x: X(t), y: height - bottom + 15, "text-anchor": "middle" }, short(t)));
    svg.append(element("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" },
      chart.label || data.axes[axis]));
    for (const s of shown) svg.append(chart.points ? point(s, X, Y, width - right) : curve(s, s.x[chart.axis || axis], X, Y));
  }
  old ? old.replaceWith(svg) : place.append(svg);
}

function curve(s, x, X, Y) {
  const color = data.colors[s.name], line = v => v.map((y, i) => `${i ? "L" : "M"}${X(x[i]).toFixed(1)},${Y(y).toFixed(1)}`).join("");
  const group = element("g", { "data-series": s.name });
  const back = s.low.map((y, i) => `L${X(x[i]).toFixed(1)},${Y(y).toFixed(1)}`).reverse().join("");
  group.append(element("path", { d: `${line(s.high)}${back}Z`, fill: color, opacity: 0.16 }));
  const path = element("path", { d: line(s.y), fill: "none", stroke: color, "stroke-width": 2, "stroke-linejoin": "round" });
  if (s.dashed) path.setAttribute("stroke-dasharray", "5 4");
  group.append(path);
  s.y.forEach((y, i) => {
    const dot = element("circle", { cx: X(x[i]), cy: Y(y), r: s.y.length > 25 ? 4 : 3, fill: color, opacity: s.y.length > 25 ? 0 : 1 });
    dot.append(element("title", {}, `${s.name}: ${short(x[i])}, ${y.toPrecision(5)}` +
      (s.low[i] < s.high[i] ? ` (${s.low[i].toPrecision(5)} to ${s.high[i].toPrecision(5)})` : "")));
    group.append(dot);
  });
  return group;
}

function point(s, X, Y, end) {
  const color = data.colors[s.name], group = element("g", { "data-series": s.name });
  const x = s.x.value, y = s.y[0];
  group.append(element("line", { x1: X(s.xlow), x2: X(s.xhigh), y1: Y(y), y2: Y(y), stroke: color }));
  group.append(element("line", { x1: X(x), x2: X(x), y1: Y(s.low[0]), y2: Y(s.high[0]), stroke: color }));
  group.append(element("circle", { cx: X(x), cy: Y(y), r: 5, fill: color }, element("title", {}, `${s.name}: ${x.toPrecision(5)}, ${y.toPrecision(5)}`)));
  const near = X(x) > end - 90;
  group.append(element("text", { class: "label", x: X(x) + (near ? -8 : 8), y: Y(y) - 8, "text-anchor": near ? "end" : "start" }, s.name));
  return group;
}

const places = [...document.querySelectorAll("[data-chart]")];
function chartOf(place) {
  return place.id === "chosen" ? data.charts[+document.getElementById("metric").value] : data.charts[+place.dataset.chart];
}
function drawAll() {
  for (const place of places) {
    const chart = chartOf(place);
    place.querySelector("h3").textContent = chart.title;
    draw(place, chart);
  }
}

for (const legend of document.querySelectorAll(".legend"))
  for (const [name, color] of Object.entries(data.colors)) {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = color;
    const button = element("button", { type: "button", "aria-pressed": "true", "data-row": name }, swatch, name);
    button.addEventListener("click", () => {
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
      for (const same of document.querySelectorAll("[data-row]"))
        same.setAttribute("aria-pressed", String(!hidden.has(same.dataset.row)));
      drawAll();
    });
    legend.append(button);
  }
for (const button of document.querySelectorAll(".axis"))
  button.addEventListener("click", () => {
    axis = button.dataset.axis;
    for (const other of document.querySelectorAll(".axis")) other.setAttribute("aria-pressed", String(other === button));
    drawAll();
  });
document.getElementById("metric")?.addEventListener("change", drawAll);

// Explanations open on tap as well, and stay inside the window.
for (const word of document.querySelectorAll(".explained")) {
  const place = () => {
    const box = word.getBoundingClientRect(), note = word.querySelector(".meaning");
    note.style.left = Math.max(8, Math.min(box.left, innerWidth - note.offsetWidth - 16)) + "px";
    note.style.top = (box.bottom + note.offsetHeight + 8 > innerHeight ? box.top - note.offsetHeight - 6 : box.bottom + 6) + "px";
  };
  for (const kind of ["mouseenter", "focus", "click"]) word.addEventListener(kind, place);
}

// ---- generations
const list = document.getElementById("problems");
if (list) {
  const set = document.getElementById("set"), search = document.getElementById("search");
  const which = document.getElementById("which"), count = document.getElementById("count"), more = document.getElementById("more");
  let limit = 10;
  data.generations.forEach((g, i) => set.append(element("option", { value: i }, g.name)));
  const passes = p => Object.values(p.answers).map(a => a.status === "passed");
  const texts = p => [p.id, p.prompt || "", ...Object.values(p.answers).flatMap(a => [a.text, a.message])].join("\n").toLowerCase();
  const show = () => {
    const words = search.value.toLowerCase();
    const found = data.generations[+set.value].problems.filter(p => (!words || texts(p).includes(words)) &&
      (which.value === "all" || (which.value === "differ" ? new Set(passes(p)).size > 1 : !passes(p).some(x => x))));
    count.textContent = `${found.length} problems`;
    list.replaceChildren(...found.slice(0, limit).map(problem));
    more.hidden = found.length <= limit;
  };
  const problem = p => {
    const box = element("div", { class: "problem" }, element("h3", {}, p.id));
    if (p.prompt !== null) box.append(element("pre", {}, p.prompt));
    const answers = element("div", { class: "answers" });
    for (const [name, a] of Object.entries(p.answers)) {
      const head = element("div", {}, element("b", {}, name + " "));
      if (a.status) head.append(element("span", { class: a.status === "passed" ? "passed" : "failed" }, a.status));
      if (a.samples) head.append(element("span", { class: "sub" }, ` (${a.samples})`));
      const one = element("div", {}, head, element("pre", {}, a.text));
      if (a.message) one.append(element("div", { class: "sub" }, a.message));
      answers.append(one);
    }
    box.append(answers);
    return box;
  };
  for (const control of [set, which]) control.addEventListener("change", () => { limit = 10; show(); });
  search.addEventListener("input", () => { limit = 10; show(); });
  more.addEventListener("click", () => { limit += 20; show(); });
  show();
}

drawAll();
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => d.open = true));
let last = innerWidth;
addEventListener("resize", () => { if (innerWidth !== last) { last = innerWidth; drawAll(); } });
