// Mathematics, and a line over each table that is wider than its page.
function setMathematics() {
  document.querySelectorAll(".arithmatex").forEach((element) => {
    renderMathInElement(element, {
      delimiters: [
        {left: "\\(", right: "\\)", display: false},
        {left: "\\[", right: "\\]", display: true},
      ],
      throwOnError: false,
    });
  });
}

function markWideTables() {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap) => {
    const is_wide = wrap.scrollWidth > wrap.clientWidth + 1;
    let sign = wrap.previousElementSibling;
    if (!sign || !sign.classList.contains("table-sign")) {
      if (!is_wide) return;
      sign = document.createElement("p");
      sign.className = "table-sign";
      sign.textContent = "This table is wider than the page: scroll it sideways →";
      wrap.before(sign);
    }
    sign.hidden = !is_wide;
  });
}

document.addEventListener("DOMContentLoaded", setMathematics);
window.addEventListener("load", markWideTables);
window.addEventListener("resize", markWideTables);
