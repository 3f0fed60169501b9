// A click on a heading sorts its table: first by the direction that puts the best figures on top.
for (const table of document.querySelectorAll(".table table")) {
  const headings = table.tHead.rows[table.tHead.rows.length - 1].cells;
  const original = [...table.tBodies[0].rows];
  [...headings].forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const number = heading.classList.contains("number");
      const first = number ? "descending" : "ascending";
      const second = number ? "ascending" : "descending";
      const order = before === first ? second : before === second ? null : first;
      for (const other of headings) other.removeAttribute("aria-sort");
      let rows = [...original];
      if (order) {
        heading.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const value = (row) => {
          const cell = row.cells[column];
          if (!number) return cell.textContent.trim();
          return cell.dataset.sort === undefined ? NaN : Number(cell.dataset.sort);
        };
        rows.sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (!number) return sign * x.localeCompare(y);
          if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
          return sign * (x - y);
        });
      }
      table.tBodies[0].append(...rows);
    });
  });
}

// A table or a drawing that is wider than the page says so.
const mark = () => {
  for (const box of document.querySelectorAll(".scroll, .drawing")) {
    box.classList.remove("wider");
    box.classList.toggle("wider", box.scrollWidth > box.clientWidth + 1);
  }
};
mark();
addEventListener("resize", mark);
