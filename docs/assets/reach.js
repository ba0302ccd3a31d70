// The themes make boxes that scroll, and groups without names. A keyboard must reach and tell them.
(() => {
  const look = () => {
    for (const search of document.querySelectorAll(".md-search")) search.setAttribute("aria-label", "Search");
    document.querySelectorAll(".md-code__nav").forEach((group, place) => {
      group.setAttribute("aria-label", `Code ${place + 1}`);
    });
    document.querySelectorAll(".md-typeset__scrollwrap").forEach((box, place) => {
      if (box.scrollWidth <= box.clientWidth) return;
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", `Table ${place + 1}`);
    });
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
  addEventListener("resize", look);
  look();
})();
