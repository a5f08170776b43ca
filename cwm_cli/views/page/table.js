"use strict";
/* Tables. */
cwm.draw.table = (place, data) => {
  const side = column => (column < data.words ? "left" : "right");
  const cell = (tag, value, column) =>
    cwm.element(tag, { style: `text-align: ${side(column)}` }, cwm.words(value));
  place.append(cwm.element("div", { class: "table", tabindex: "0" }, cwm.element("table", {},
    cwm.element("thead", {}, cwm.element("tr", {},
      data.heads.map((head, column) => cell("th", head || " ", column)))),
    cwm.element("tbody", {}, data.rows.map(row =>
      cwm.element("tr", {}, row.map((value, column) => cell("td", value, column))))))));
};
