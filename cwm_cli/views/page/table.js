"use strict";
// Tables: sorted by a click on a head, filtered by the values of some columns, copied as CSV.
// Also the sections that draw a table in another form.
//
// cwm.draw.table(element, {heads, rows, words?, filters?, folded?})
//   a cell is a text, a number or null; `words` is the number of text columns, which come first;
//   `filters` are the numbers of the columns with a filter; a click on `folded` opens the table.
// cwm.draw.jobs(element, {...table, curves, groups, x, y, y_range?, budget?})
//   a table with a curve for each row: {x: [], y: [], over}. The chart above it has a line for
//   each value of a column in `groups`, over the rows that pass the filters.
// cwm.draw.bars(element, {heads, rows: [{name, values: [], marks: [], words: []}], legend})
//   shares from 0 to 1 as bars, a column for each head, with a mark for comparison.
// cwm.draw.cells(element, {columns, frames: [{name, rows: [{name, before?, after, said}]}]})
//   recorded and predicted cells, one frame at a time; differences are marked.
(() => {
  const MOST = 25; // rows that are shown at first
  const DASH = "\u2013";
  const { part, number, figure } = cwm;

  const plain = (cell) => (cell === null || cell === undefined ? "" : String(cell));
  const shown = (cell) => (typeof cell === "number" ? figure(cell) : plain(cell) || DASH);

  // The number at the start of a cell, to sort cells such as "0.93 ± 0.01" and "12 solved".
  const leading = (cell) => {
    if (typeof cell === "number") return cell;
    const found = /^[$+]?-?\d[\d,]*(\.\d+)?([eE][-+]?\d+)?/.exec(plain(cell).replace("\u2212", "-"));
    return found ? Number(found[0].replace(/[$,+]/g, "")) : null;
  };

  const compare = (one, other, words) => {
    const [a, b] = words ? [plain(one), plain(other)] : [leading(one), leading(other)];
    const missing = (value) => value === null || value === "" || Number.isNaN(value);
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
    return words ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  };

  // A cell of CSV. A quote before a formula keeps a spreadsheet from computing it.
  const csvCell = (cell) => {
    let text = plain(cell);
    if (typeof cell !== "number" && /^[=+\-@\t\r]/.test(text) && leading(text) === null) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = part("textarea", "unseen");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };

  class Table {
    constructor(element, data, onfilter = null) {
      this.data = data;
      this.words = data.words ?? 1;
      this.onfilter = onfilter;
      this.chosen = new Map();
      this.order = null;
      this.whole = false;
      this.root = part("div", "table");
      this.tools = part("div", "table-tools");
      this.box = part("div", "table-box");
      this.box.tabIndex = 0;
      this.box.setAttribute("role", "region");
      this.box.setAttribute("aria-label", "table");
      const small = data.rows.length < 8;
      this.root.append(...(small ? [this.box, this.tools] : [this.tools, this.box]));
      element.append(this.root);
      this.drawTools();
      this.draw();
    }

    // The numbers of the rows that pass the filters.
    get rows() {
      return this.data.rows
        .map((_, place) => place)
        .filter((place) => [...this.chosen].every(([column, value]) =>
          plain(this.data.rows[place][column]) === value));
    }

    get sorted() {
      const rows = this.rows;
      if (!this.order) return rows;
      const { column, falling } = this.order;
      const words = column < this.words;
      const missing = (place) => (words ? plain(this.data.rows[place][column]) === "" : leading(this.data.rows[place][column]) === null);
      return rows.sort((a, b) => {
        const found = compare(this.data.rows[a][column], this.data.rows[b][column], words);
        return falling && !missing(a) && !missing(b) ? -found : found || a - b;
      });
    }

    drawTools() {
      for (const column of this.data.filters || []) {
        const values = [...new Set(this.data.rows.map((row) => plain(row[column])))];
        if (values.length < 2) continue;
        values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
        const label = part("label", "table-filter", this.data.heads[column]);
        const select = part("select");
        select.dataset.column = column;
        select.append(new Option(`all ${values.length}`, ""));
        values.forEach((value, n) => select.append(new Option(value || DASH, String(n))));
        select.addEventListener("change", () => {
          if (select.value === "") this.chosen.delete(column);
          else this.chosen.set(column, values[Number(select.value)]);
          this.draw();
          this.onfilter?.(this.rows);
        });
        label.append(select);
        this.tools.append(label);
      }
      this.count = part("span", "table-count");
      this.count.setAttribute("aria-live", "polite");
      const button = part("button", "table-copy", "Copy as CSV");
      button.type = "button";
      button.addEventListener("click", async () => {
        const done = await copy(this.csv());
        button.textContent = done ? "Copied" : "Copying is not allowed";
        setTimeout(() => { button.textContent = "Copy as CSV"; }, 2000);
      });
      this.tools.append(this.count, button);
    }

    csv() {
      const lines = [this.data.heads, ...this.sorted.map((place) => this.data.rows[place])];
      return `${lines.map((line) => line.map(csvCell).join(",")).join("\n")}\n`;
    }

    draw() {
      const rows = this.sorted;
      const table = part("table");
      const head = part("tr");
      this.data.heads.forEach((words, column) => head.append(this.head(words, column)));
      const top = part("thead");
      top.append(head);
      const body = part("tbody");
      for (const place of this.whole ? rows : rows.slice(0, MOST)) body.append(this.row(place));
      table.append(top, body);
      this.box.replaceChildren(table);
      const every = this.data.rows.length;
      this.count.textContent = rows.length === every ? `${every} rows` : `${rows.length} of ${every} rows`;
      this.count.hidden = every < 8;
      if (!this.whole && rows.length > MOST) {
        const more = part("button", "table-more", `Show all ${rows.length} rows`);
        more.type = "button";
        more.addEventListener("click", () => {
          this.whole = true;
          this.draw();
        });
        this.box.append(more);
      }
    }

    head(words, column) {
      const cell = part("th", column < this.words ? "words" : "number");
      cell.scope = "col";
      const ordered = this.order?.column === column;
      if (ordered) cell.setAttribute("aria-sort", this.order.falling ? "descending" : "ascending");
      const button = part("button", "", words);
      button.type = "button";
      button.append(part("span", "arrow", ordered ? (this.order.falling ? " \u2193" : " \u2191") : ""));
      button.addEventListener("click", () => {
        const falling = ordered ? !this.order.falling : column >= this.words;
        this.order = { column, falling };
        this.draw();
        this.box.querySelectorAll("th button")[column].focus();
      });
      cell.append(button);
      return cell;
    }

    row(place) {
      const line = part("tr");
      this.data.rows[place].forEach((cell, column) => {
        line.append(part("td", column < this.words ? "words" : "number", shown(cell)));
      });
      return line;
    }
  }

  // The best score of a curve up to each integer x, null after the end of an unfinished curve.
  const best = (curve, last) => {
    const found = [];
    let place = 0;
    let top = null;
    const end = curve.over ? last : Math.max(0, ...curve.x);
    for (let x = 0; x <= last; x += 1) {
      for (; place < curve.x.length && curve.x[place] <= x; place += 1) {
        if (curve.y[place] !== null) top = top === null ? curve.y[place] : Math.max(top, curve.y[place]);
      }
      found.push(x <= end ? top : null);
    }
    return found;
  };

  // The mean of curves with its standard error, at each x with at least one curve.
  const mean = (name, curves, last) => {
    const every = curves.map((curve) => best(curve, last));
    const found = { name, x: [], y: [], low: [], high: [], tips: [] };
    for (let x = 0; x <= last; x += 1) {
      const known = every.map((some) => some[x]).filter((value) => value !== null);
      if (!known.length) continue;
      const middle = known.reduce((a, b) => a + b, 0) / known.length;
      const spread = known.reduce((a, b) => a + (b - middle) ** 2, 0) / Math.max(known.length - 1, 1);
      const error = known.length > 1 ? Math.sqrt(spread / known.length) : 0;
      found.x.push(x);
      found.y.push(middle);
      found.low.push(middle - error);
      found.high.push(middle + error);
      found.tips.push(known.length === 1 ? "1 job" : `${known.length} jobs`);
    }
    return found;
  };

  const EACH = "each job";

  const grouped = (data, rows, column) => {
    const curves = rows.filter((place) => data.curves[place]?.x.length);
    if (column === EACH) {
      return curves.map((place) => {
        const { x, y } = data.curves[place];
        const names = data.rows[place].slice(0, data.words);
        return { name: names.map(plain).join(" "), x, y: best({ x, y, over: false }, 0) && running(y) };
      });
    }
    const last = Math.max(0, ...curves.flatMap((place) => data.curves[place].x));
    const groups = new Map();
    for (const place of curves) {
      const key = column === null ? "all jobs" : plain(data.rows[place][column]);
      groups.set(key, [...(groups.get(key) || []), data.curves[place]]);
    }
    return [...groups].map(([key, some]) => mean(key, some, last));
  };

  const running = (values) => {
    let top = null;
    return values.map((value) => {
      if (value !== null) top = top === null ? value : Math.max(top, value);
      return top;
    });
  };

  const drawJobs = (element, data) => {
    const root = part("div", "jobs");
    element.append(root);
    const bar = part("div", "table-tools");
    const label = part("label", "table-filter", "one line per");
    const select = part("select");
    const several = (data.groups || []).filter((column) => new Set(data.rows.map((row) => plain(row[column]))).size > 1);
    for (const column of several) select.append(new Option(data.heads[column], String(column)));
    select.append(new Option("all jobs", "all"), new Option("job", EACH));
    label.append(select);
    bar.append(label);
    const place = part("div");
    root.append(bar, place);
    let rows = data.rows.map((_, n) => n);
    const now = () => {
      const column = select.value === EACH ? EACH : select.value === "all" ? null : Number(select.value);
      const series = grouped(data, rows, column);
      const words = column === EACH
        ? ""
        : "Mean of the best score so far over jobs; the band is one standard error. A finished job keeps its score.";
      return {
        x: data.x, y: data.y, y_range: data.y_range, staircase: column === EACH, series,
        note: series.length ? words : "No selected job has a completion yet.",
      };
    };
    const chart = cwm.draw.chart(place, now());
    select.addEventListener("change", () => chart.update(now()));
    new Table(root, data, (left) => {
      rows = left;
      chart.update(now());
    });
  };

  const drawBars = (element, data) => {
    const table = part("table", "bars");
    const head = part("tr");
    head.append(part("th", "words"), ...data.heads.map((words) => part("th", "words", words)));
    const top = part("thead");
    top.append(head);
    const body = part("tbody");
    for (const row of data.rows) {
      const line = part("tr", row.strong ? "strong" : "");
      const name = part("th", "words", row.name);
      name.scope = "row";
      line.append(name);
      row.values.forEach((value, n) => {
        const cell = part("td");
        cell.dataset.head = data.heads[n];
        if (value === null) {
          cell.textContent = DASH;
        } else {
          const track = part("div", "bar");
          const fill = part("div", "bar-fill");
          fill.style.setProperty("width", `${100 * Math.min(Math.max(value, 0), 1)}%`);
          track.append(fill);
          const mark = row.marks?.[n];
          if (typeof mark === "number") {
            const line_ = part("div", "bar-mark");
            line_.style.setProperty("left", `${100 * Math.min(Math.max(mark, 0), 1)}%`);
            line_.title = `${data.mark || "mark"} ${number(mark, 3)}`;
            track.append(line_);
          }
          cell.append(track, part("span", "bar-words", row.words?.[n] ?? number(value, 3)));
        }
        line.append(cell);
      });
      body.append(line);
    }
    table.append(top, body);
    const box = part("div", "table-box");
    box.append(table);
    element.append(box);
    if (data.legend) element.append(part("p", "chart-note", data.legend));
  };

  const drawCells = (element, data) => {
    const root = part("div", "cells");
    const bar = part("div", "cells-bar");
    const slider = part("input");
    slider.type = "range";
    slider.min = 0;
    slider.max = data.frames.length - 1;
    slider.value = 0;
    slider.setAttribute("aria-label", "step");
    const words = part("output", "cells-words");
    bar.append(slider, words);
    const box = part("div", "table-box");
    root.append(bar, box);
    element.append(root);
    const draw = () => {
      const frame = data.frames[Number(slider.value)];
      const table = part("table", "grid");
      if (data.columns) {
        const head = part("tr");
        head.append(part("th"), ...data.columns.map((name) => part("th", "", name)));
        table.append(head);
      }
      let wrong = 0;
      for (const row of frame.rows) {
        const line = part("tr");
        line.append(part("th", "", row.name));
        row.after.forEach((value, n) => {
          const said = row.said ? row.said[n] : null;
          const differs = row.said && said !== value;
          wrong += differs;
          const cell = part("td", differs ? "differs" : row.before && row.before[n] !== value ? "changed" : "");
          if (differs) {
            cell.append(part("del", "", shown(said)), part("span", "", " "), part("ins", "", shown(value)));
            cell.title = `predicted ${shown(said)}, recorded ${shown(value)}`;
          } else {
            cell.textContent = shown(value);
          }
          line.append(cell);
        });
        table.append(line);
      }
      box.replaceChildren(table);
      const told = frame.rows.some((row) => row.said)
        ? wrong === 0 ? "all cells correct" : wrong === 1 ? "one cell differs" : `${wrong} cells differ`
        : "";
      words.textContent = [frame.name, told].filter(Boolean).join(": ");
    };
    slider.addEventListener("input", draw);
    draw();
  };

  cwm.draw.table = (element, data) => {
    if (!data.folded) return new Table(element, data);
    const folded = part("details", "folded");
    folded.append(part("summary", "", data.folded));
    element.append(folded);
    return new Table(folded, data);
  };
  cwm.draw.jobs = drawJobs;
  cwm.draw.bars = drawBars;
  cwm.draw.cells = drawCells;
})();
