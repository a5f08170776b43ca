"use strict";
// Line charts: axes with round numbers, bands, loose points, values under the pointer or by keys.
//
// cwm.draw.chart(element, {x, y, log_x?, y_range?, staircase?, cloud?, height?, series, rules?, note?})
//   series: [{name, x: [], y: [], low?: [], high?: [], loose?, tone?, dash?, wide?, tips?: []}]
//   rules:  [{name, y}] are horizontal lines to compare with.
// A null among the y breaks the line; a wide line is below thin ones. A tone (0 to 5, "quiet",
// "good" or "bad") selects the colour, the dashes and the mark, so that series differ in print too.
// Returns {update(data)}, which draws new data in the same place.
//
// cwm.draw.groups(element, {key?: [{name, tone}], groups: [{title, about?, sections}]})
//   panels below headings, with one legend for all panels.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DECIMALS = 6;
  const CHARACTER = 6.6; // about the width in pixels of a character of a label
  let count = 0;

  const node = (name, attributes = {}, text = null) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    return made;
  };

  const part = (name, className, text = null) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== null) made.textContent = text;
    return made;
  };

  const finite = (value) => typeof value === "number" && Number.isFinite(value);

  const niceStep = (least) => {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least * (1 - 1e-9));
  };

  // Write a number in at most so many significant digits, with commas, and millions as 1.2M.
  const number = (value, digits = 4) => {
    if (!finite(value)) return "\u2013";
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-4)) {
      return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    for (const [unit, word] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]]) {
      if (size >= unit) return `${Number((value / unit).toPrecision(digits))}${word}`;
    }
    const rounded = Number.isInteger(value) ? value : Number(value.toPrecision(digits));
    return rounded.toLocaleString("en", { maximumFractionDigits: DECIMALS });
  };

  // Write a number as people read it in a table: three significant digits, all digits of the
  // integer part, and more if it would read as an integer that it is not.
  const figure = (value) => {
    if (!finite(value) || Number.isInteger(value)) return number(value);
    let digits = Math.max(3, String(Math.trunc(Math.abs(value))).length + (Math.abs(value) >= 100));
    while (digits < 6 && Number.isInteger(Number(value.toPrecision(digits)))) digits += 1;
    return number(value, digits);
  };

  // The ends and marks of an axis, and a function from a value to its position in [0, 1].
  const axisOf = (values, { log = false, range = null, many = 5, whole = false, near = true }) => {
    const known = values.filter((value) => finite(value) && (!log || value > 0));
    let low = range ? range[0] : known.reduce((a, b) => Math.min(a, b), Infinity);
    let high = range ? range[1] : known.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!finite(low) || !finite(high)) [low, high] = log ? [1, 10] : [0, 1];
    if (log) {
      const [first, last] = [Math.floor(Math.log10(low)), Math.max(Math.ceil(Math.log10(high)), Math.floor(Math.log10(low)) + 1)];
      const marks = [];
      for (let n = first; n <= last; n += Math.ceil((last - first) / many)) marks.push(10 ** n);
      const place = (value) => (Math.log10(Math.max(value, 10 ** first)) - first) / (last - first);
      return { low: 10 ** first, high: 10 ** last, marks, place };
    }
    if (!range && !near && low > 0 && (whole || low < high / 2)) low = 0;
    if (high - low < 1e-9 * Math.max(1, Math.abs(high))) {
      const around = whole || high === 0 ? 1 : Math.abs(high) * 0.1;
      [low, high] = [low - around, high + around];
    }
    let step = niceStep((high - low) / many);
    if (whole) step = Math.max(1, step);
    if (!range && !near) {
      const fine = whole ? step : step / 2;
      low = fine * Math.floor(low / fine + 1e-9);
      high = fine * Math.ceil(high / fine - 1e-9);
    }
    const marks = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) {
      marks.push(Number((n * step).toPrecision(12)));
    }
    return { low, high, marks, place: (value) => (value - low) / (high - low) };
  };

  const colourOf = (series, place) => {
    const tone = series.tone ?? place % 6;
    return `var(--tone-${tone})`;
  };

  const MARKS = { 0: "circle", 1: "square", 2: "triangle", 3: "diamond", 4: "plus", 5: "cross",
    quiet: "ring", good: "triangle", bad: "cross" };
  const DASHES = { 1: "7 4", 2: "2 4", 3: "9 4 2 4", 4: "13 5", 5: "5 3 2 3 2 3" };

  // Colour, mark and dashes of a series; a chart with a single line has no need of dashes.
  const styled = (one, place, several) => {
    const tone = one.tone ?? place % 6;
    const dashes = one.wide ? "" : DASHES[tone] || (one.dash ? "5 4" : "");
    return { ...one, colour: colourOf(one, place), mark: MARKS[tone], dashes: several ? dashes : "" };
  };

  const SHAPES = {
    square: "M-1,-1H1V1H-1Z", triangle: "M0,-1.2L1.2,0.9H-1.2Z", diamond: "M0,-1.4L1.2,0L0,1.4L-1.2,0Z",
    plus: "M-1.3,0H1.3M0,-1.3V1.3", cross: "M-1,-1L1,1M-1,1L1,-1",
  };
  const markAt = (mark, x, y, r) => {
    const open = ["ring", "plus", "cross"].includes(mark);
    const style = { class: open ? "ring" : "dot" };
    if (!SHAPES[mark]) return node("circle", { ...style, cx: x, cy: y, r });
    const path = SHAPES[mark].replace(/-?\d+(\.\d+)?/g, (part) => Number((part * r).toFixed(2)));
    return node("path", { ...style, d: path, transform: `translate(${x} ${y})` });
  };

  // A sample of a series for legends: its line with dashes, or its mark.
  const sample = (one) => {
    const svg = node("svg", { class: "sample", width: 26, height: 12, "aria-hidden": "true", style: `color:${one.colour}` });
    if (one.loose) svg.append(markAt(one.mark, 13, 6, 4));
    else {
      const line = node("path", { class: one.wide ? "line wide" : "line", d: "M1,6H25" });
      if (one.dashes) line.setAttribute("stroke-dasharray", one.dashes);
      svg.append(line);
    }
    return svg;
  };

  // Move labels that overlap apart, in the same order.
  const apart = (wanted, room, low, high) => {
    const order = wanted.map((y, place) => ({ y, place })).sort((a, b) => a.y - b.y);
    order.forEach((one, n) => {
      one.y = Math.max(one.y, low, n ? order[n - 1].y + room : low);
    });
    for (let n = order.length - 1, limit = high; n >= 0; n -= 1, limit -= room) {
      order[n].y = Math.min(order[n].y, limit);
      limit = order[n].y;
    }
    const found = [];
    for (const one of order) found[one.place] = one.y;
    return found;
  };

  class Chart {
    constructor(element, data) {
      this.hidden = new Set();
      this.cursor = null;
      this.clip = `plot-${(count += 1)}`;
      this.root = part("div", "chart");
      this.legend = part("div", "chart-legend");
      this.stage = part("div", "chart-stage");
      this.tip = part("div", "chart-tip");
      this.tip.hidden = true;
      this.spoken = part("div", "unseen");
      this.spoken.setAttribute("aria-live", "polite");
      this.note = part("p", "chart-note");
      this.root.append(this.legend, this.stage, this.note, this.spoken);
      element.append(this.root);
      this.update(data);
      let width = 0;
      new ResizeObserver(() => {
        if (Math.abs(this.stage.clientWidth - width) < 1) return;
        width = this.stage.clientWidth;
        requestAnimationFrame(() => this.draw());
      }).observe(this.stage);
    }

    update(data) {
      this.data = data;
      const several = data.series.filter((one) => !one.loose).length > 1;
      this.series = data.series.map((one, place) => styled(one, place, several));
      this.note.textContent = data.note || "";
      this.note.hidden = !data.note;
      this.cursor = null;
      this.draw();
    }

    get shown() {
      return this.series.filter((one) => !this.hidden.has(one.name));
    }

    toggle(name) {
      if (!this.hidden.delete(name)) this.hidden.add(name);
      this.cursor = null;
      this.draw();
      this.root.querySelector(`[data-place="${this.series.findIndex((s) => s.name === name)}"]`)?.focus();
    }

    // Choose the axes, and make room for the names of lines where they end.
    lay() {
      const width = Math.max(this.stage.clientWidth || 640, 200);
      const height = this.data.height || (width < 420 ? 210 : width < 620 ? 250 : 300);
      const lines = this.series.filter((one) => !one.loose);
      const longest = Math.max(0, ...this.series.map((one) => one.name.length));
      const direct =
        this.series.length > 1 && lines.length === this.series.length && width >= 560 &&
        this.series.length <= 6 && longest <= 30;
      const every = this.shown.length ? this.shown : this.series;
      const xs = every.flatMap((one) => one.x);
      const ys = every.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]);
      const rules = (this.data.rules || []).map((rule) => rule.y);
      const whole = xs.every((value) => !finite(value) || Number.isInteger(value));
      const top = 26;
      const bottom = 40;
      const yAxis = axisOf([...ys, ...rules], {
        range: this.data.y_range || null, many: Math.max(2, Math.round((height - top - bottom) / 52)),
        near: false, whole: !this.data.y_range && ys.every((value) => !finite(value) || Number.isInteger(value)),
      });
      const left = 14 + CHARACTER * Math.max(...yAxis.marks.map((mark) => number(mark).length), 2);
      const right = direct ? Math.min(24 + longest * CHARACTER, width * 0.34) : 16;
      const xAxis = axisOf(xs, {
        log: this.data.log_x, many: Math.max(2, Math.round((width - left - right) / 92)), whole,
      });
      Object.assign(this, { width, height, left, right, top, bottom, xAxis, yAxis, direct });
    }

    px(value) {
      return this.left + this.xAxis.place(value) * (this.width - this.left - this.right);
    }

    py(value) {
      const share = this.yAxis.place(value);
      return this.height - this.bottom - share * (this.height - this.top - this.bottom);
    }

    draw() {
      if (!this.stage.isConnected && !this.stage.clientWidth) this.width = 640;
      this.lay();
      const { width, height } = this;
      const svg = node("svg", {
        width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img",
        "aria-label": this.words(),
      });
      const clip = node("clipPath", { id: this.clip });
      clip.append(node("rect", {
        x: this.left - 4, y: this.top - 4, width: Math.max(0, width - this.left - this.right + 8),
        height: height - this.top - this.bottom + 8,
      }));
      svg.append(clip, this.grid(), this.rules(), this.lines());
      if (this.direct) svg.append(this.names());
      this.over = node("g", { class: "chart-over", "pointer-events": "none" });
      svg.append(this.over);
      this.listen(svg);
      this.svg = svg;
      this.stage.replaceChildren(svg, this.tip);
      this.tip.hidden = true;
      this.drawLegend();
    }

    words() {
      const names = this.series.map((one) => one.name).filter(Boolean).join(", ");
      return `${this.data.y} over ${this.data.x}${names ? `: ${names}` : ""}. Arrow keys show values.`;
    }

    grid() {
      const group = node("g", { class: "chart-grid" });
      const { width, height, left, right, top, bottom } = this;
      for (const mark of this.yAxis.marks) {
        const y = this.py(mark);
        group.append(node("line", { x1: left, x2: width - right, y1: y, y2: y }));
        group.append(node("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, number(mark)));
      }
      for (const mark of this.xAxis.marks) {
        const x = this.px(mark);
        if (x < left - 1 || x > width - right + 1) continue;
        group.append(node("line", { class: "tick", x1: x, x2: x, y1: height - bottom, y2: height - bottom + 4 }));
        group.append(node("text", { x, y: height - bottom + 17, "text-anchor": "middle" }, number(mark)));
      }
      group.append(node("text", { class: "label", x: 2, y: top - 12 }, this.data.y));
      group.append(node("text", {
        class: "label", x: width - right, y: height - 5, "text-anchor": "end",
      }, this.data.x));
      return group;
    }

    rules() {
      const group = node("g", { class: "chart-rules" });
      for (const rule of this.data.rules || []) {
        if (!finite(rule.y)) continue;
        const y = this.py(rule.y);
        group.append(node("line", { x1: this.left, x2: this.width - this.right, y1: y, y2: y }));
        const above = y > this.top + 16;
        group.append(node("text", { x: this.left + 4, y: above ? y - 5 : y + 14 }, rule.name));
      }
      return group;
    }

    lines() {
      const group = node("g", { "clip-path": `url(#${this.clip})` });
      for (const one of this.series) {
        if (this.hidden.has(one.name)) continue;
        const drawn = node("g", { class: "series", "data-name": one.name, style: `color:${one.colour}` });
        if (one.low && one.high) drawn.append(this.band(one));
        drawn.append(one.loose ? this.dots(one) : this.line(one));
        group.append(drawn);
      }
      return group;
    }

    // The path through the points of a series; a missing y is a gap.
    path(one) {
      let path = "";
      let before = null;
      one.x.forEach((x, place) => {
        const y = one.y[place];
        if (!finite(x) || !finite(y)) {
          before = null;
          return;
        }
        const [left, top] = [this.px(x).toFixed(1), this.py(y).toFixed(1)];
        if (before === null) path += `M${left},${top}`;
        else if (this.data.staircase) path += `H${left}V${top}`;
        else path += `L${left},${top}`;
        before = y;
      });
      return path;
    }

    line(one) {
      const group = node("g");
      const style = { class: one.wide ? "line wide" : "line", d: this.path(one) };
      if (one.dashes) style["stroke-dasharray"] = one.dashes;
      group.append(node("path", style));
      const known = one.x.map((x, n) => n).filter((n) => finite(one.y[n]) && finite(one.x[n]));
      const alone = (n) => !finite(one.y[n - 1]) && !finite(one.y[n + 1]);
      const few = known.length <= 12 && !one.wide && !this.data.staircase;
      for (const n of known) {
        if (!few && !alone(n)) continue;
        group.append(markAt(one.mark, this.px(one.x[n]), this.py(one.y[n]), 2.6));
      }
      return group;
    }

    dots(one) {
      const group = node("g");
      const many = one.x.length > 400;
      one.x.forEach((x, n) => {
        if (!finite(x) || !finite(one.y[n])) return;
        group.append(markAt(one.mark, this.px(x).toFixed(1), this.py(one.y[n]).toFixed(1), many ? 2.4 : 3.4));
      });
      return group;
    }

    band(one) {
      const there = one.x.map((x, n) => n).filter((n) => [one.x[n], one.low[n], one.high[n]].every(finite));
      const edge = (some) => {
        const found = [];
        there.forEach((n, place) => {
          const y = this.py(some[n]).toFixed(1);
          if (this.data.staircase && place) found.push(`${this.px(one.x[n]).toFixed(1)},${this.py(some[there[place - 1]]).toFixed(1)}`);
          found.push(`${this.px(one.x[n]).toFixed(1)},${y}`);
        });
        return found;
      };
      const points = [...edge(one.high), ...edge(one.low).reverse()];
      const group = node("g");
      group.append(node("polygon", { class: "band", points: points.join(" ") }));
      if (there.length === 1) { // a band of one point has no area
        const [x, low, high] = [this.px(one.x[there[0]]), this.py(one.low[there[0]]), this.py(one.high[there[0]])];
        group.append(node("path", { class: "error", d: `M${x - 4},${low}H${x + 4}M${x},${low}V${high}M${x - 4},${high}H${x + 4}` }));
      }
      return group;
    }

    // Write the name of each line at its end; a click on it hides or shows the line.
    names() {
      const group = node("g", { class: "chart-names" });
      const low = this.top + 4;
      const high = this.height - this.bottom;
      const wanted = this.series.map((one) => {
        const last = one.y.filter(finite).at(-1);
        return this.hidden.has(one.name) || last === undefined ? high : this.py(last) + 4;
      });
      const most = Math.max(4, Math.floor((this.right - 18) / CHARACTER));
      apart(wanted, 16, low, high).forEach((y, place) => {
        const one = this.series[place];
        const name = one.name.length > most ? `${one.name.slice(0, most - 1)}\u2026` : one.name;
        const text = node("text", { x: this.width - this.right + 8, y, style: `fill:${one.colour}` }, name);
        text.append(node("title", {}, one.name));
        this.button(text, one, place);
        group.append(text);
      });
      return group;
    }

    button(element, one, place) {
      const on = !this.hidden.has(one.name);
      element.setAttribute("role", "button");
      element.setAttribute("tabindex", 0);
      element.setAttribute("aria-pressed", String(on));
      element.setAttribute("data-place", place);
      element.classList.toggle("off", !on);
      element.addEventListener("click", () => this.toggle(one.name));
      element.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        this.toggle(one.name);
      });
    }

    drawLegend() {
      this.legend.replaceChildren();
      const named = this.series.length > 1 && !this.direct && this.data.legend !== false;
      this.legend.hidden = !named;
      if (!named) return;
      this.series.forEach((one, place) => {
        const item = part("span", "chart-key");
        item.append(sample(one), part("span", "", one.name));
        this.button(item, one, place);
        this.legend.append(item);
      });
    }

    listen(svg) {
      const at = (event) => {
        const box = svg.getBoundingClientRect();
        const scale = box.width ? this.width / box.width : 1;
        return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      };
      svg.addEventListener("pointermove", (event) => this.point(...at(event)));
      svg.addEventListener("pointerdown", (event) => this.point(...at(event)));
      svg.addEventListener("pointerleave", (event) => {
        if (event.pointerType === "mouse") this.forget();
      });
      svg.addEventListener("blur", () => this.forget());
      svg.addEventListener("keydown", (event) => this.key(event));
    }

    // The positions of the cursor: each point of a cloud or of loose points, else each x.
    stops() {
      if (!this.known || this.knownFor !== this.svg) {
        this.knownFor = this.svg;
        this.flat = this.data.cloud || (this.shown.length > 0 && this.shown.every((one) => one.loose));
        const points = this.shown.flatMap((one) =>
          one.x.map((x, n) => ({ one, n, x, y: one.y[n] })).filter((p) => finite(p.x) && finite(p.y)));
        points.sort((a, b) => a.x - b.x || a.y - b.y);
        this.known = this.flat ? points : [...new Set(points.map((p) => p.x))];
      }
      return this.known;
    }

    point(left, top) {
      const stops = this.stops();
      if (!stops.length || left < this.left - 12 || left > this.width - this.right + 12) {
        this.forget();
        return;
      }
      let best = 0;
      let least = Infinity;
      stops.forEach((stop, n) => {
        const away = this.flat
          ? (this.px(stop.x) - left) ** 2 + (this.py(stop.y) - top) ** 2
          : Math.abs(this.px(stop) - left);
        if (away < least) [best, least] = [n, away];
      });
      if (this.flat && least > 30 ** 2) this.forget();
      else this.show(best);
    }

    key(event) {
      const last = this.stops().length - 1;
      const now = this.cursor ?? -1;
      const far = event.shiftKey ? 10 : 1;
      const next = {
        ArrowRight: Math.min(last, now + far), ArrowLeft: Math.max(0, now - far), Home: 0, End: last,
      }[event.key];
      if (event.key === "Escape") this.forget();
      if (next === undefined || last < 0) return;
      event.preventDefault();
      this.show(next);
      this.spoken.textContent = this.tip.textContent;
    }

    forget() {
      this.cursor = null;
      this.tip.hidden = true;
      this.over.replaceChildren();
    }

    show(place) {
      this.cursor = place;
      const stop = this.stops()[place];
      const found = this.flat ? [stop] : this.at(stop);
      if (!found.length) return;
      const x = this.flat ? stop.x : found[0].x;
      this.over.replaceChildren();
      if (!this.flat) {
        this.over.append(node("line", {
          class: "cursor", x1: this.px(x), x2: this.px(x), y1: this.top, y2: this.height - this.bottom,
        }));
      }
      for (const point of found) {
        this.over.append(node("circle", {
          cx: this.px(point.x), cy: this.py(point.y), r: 4.5, style: `color:${point.one.colour}`,
        }));
      }
      this.write(x, found);
    }

    // The point of each visible series at an x; of a staircase the point before it.
    at(x) {
      const found = [];
      for (const one of this.shown) {
        let best = -1;
        for (let n = 0; n < one.x.length; n += 1) {
          if (!finite(one.y[n]) || one.x[n] > x) continue;
          const is_there = one.x[n] === x;
          if ((is_there || (!one.loose && this.data.staircase)) && (best < 0 || one.x[n] >= one.x[best])) best = n;
        }
        if (best >= 0) found.push({ one, n: best, x: one.x[best], y: one.y[best] });
      }
      return found.map((point) => ({ ...point, x: point.one.loose ? point.x : x }));
    }

    write(x, found) {
      this.tip.replaceChildren();
      if (!this.data.cloud) {
        this.tip.append(part("div", "chart-tip-head", `${this.data.x} ${number(x, 6)}`));
        if (this.flat) this.tip.append(part("div", "", `${this.data.y} ${number(found[0].y, 6)}`));
      }
      for (const { one, n, y } of found) {
        const line = part("div", "chart-tip-line");
        line.append(sample(one), part("span", "chart-tip-name", one.name));
        if (!this.flat) {
          const around = one.low && finite(one.low[n]) ? ` (${number(one.low[n])} to ${number(one.high[n])})` : "";
          line.append(part("span", "chart-tip-value", number(y, 5) + around));
        }
        this.tip.append(line);
        if (one.tips && one.tips[n]) this.tip.append(part("div", "chart-tip-more", one.tips[n]));
      }
      this.tip.hidden = false;
      const box = this.tip.getBoundingClientRect();
      const scale = (this.stage.clientWidth || this.width) / this.width;
      const place = this.px(x) * scale;
      const room = this.stage.clientWidth;
      const left = place + 14 + box.width > room ? place - 14 - box.width : place + 14;
      this.tip.style.setProperty("left", `${Math.max(0, Math.min(left, room - box.width))}px`);
      const high = this.flat ? this.py(found[0].y) * scale - box.height - 10 : this.top * scale;
      this.tip.style.setProperty("top", `${Math.max(0, high)}px`);
    }
  }

  cwm.number = number;
  cwm.figure = figure;
  cwm.part = part;
  cwm.draw.chart = (element, data) => new Chart(element, data);
  cwm.draw.groups = (element, data) => {
    if (data.key) {
      const legend = part("div", "chart-legend");
      for (const one of data.key) {
        const item = part("span", "chart-key still");
        item.append(sample(styled(one, 0, true)), part("span", "", one.name));
        legend.append(item);
      }
      element.append(legend);
    }
    for (const group of data.groups) {
      const place = part("div", "group");
      if (group.title) place.append(part("h3", "", group.title));
      if (group.about) place.append(part("p", "chart-note", group.about));
      const panels = part("div", "panels");
      for (const [title, kind, inner] of group.sections) {
        const panel = part("div", kind === "chart" ? "" : "broad");
        if (title) panel.append(part("h4", "", title));
        panels.append(panel);
        cwm.drawn(panel, kind, inner);
      }
      place.append(panels);
      element.append(place);
    }
  };
})();
