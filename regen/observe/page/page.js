"use strict";
(() => {
  const EVERY = 3000, PATIENCE = 10000;
  const live = document.getElementById("live"), updated = document.getElementById("updated");
  const main = () => document.getElementById("main");

  // The reader's own time beside UTC.
  const localTimes = () => {
    for (const one of document.querySelectorAll("time[datetime]")) {
      one.title = new Date(one.dateTime).toLocaleString() + " (your time)";
    }
  };

  // The choice of colours outlives the page; a browser that keeps nothing loses only that.
  const schemes = [...document.querySelectorAll("input[name=scheme]")];
  try {
    const kept = document.getElementById(localStorage.getItem("regen-scheme") || "");
    if (kept) kept.checked = true;
    for (const one of schemes) one.addEventListener("change", () => localStorage.setItem("regen-scheme", one.id));
  } catch { /* storage is forbidden */ }

  const say = (text, at, isBad) => {
    if (live.textContent !== text) live.textContent = text;
    live.className = isBad ? "bad" : "";
    updated.textContent = at;
  };

  const replace = (fresh) => {
    const old = main(), at = [window.scrollX, window.scrollY];
    const open = [...old.querySelectorAll("details[open][id]")].map((one) => one.id);
    const across = [...old.querySelectorAll(".wide[id]")].map((one) => [one.id, one.scrollLeft]);
    const held = document.activeElement, owner = held && old.contains(held) ? held.closest("[id]") : null;
    const isSummary = held && held.tagName === "SUMMARY";
    old.replaceWith(fresh);
    for (const id of open) { const one = document.getElementById(id); if (one) one.open = true; }
    for (const [id, left] of across) { const one = document.getElementById(id); if (one) one.scrollLeft = left; }
    const again = owner && document.getElementById(owner.id);
    if (again) (isSummary ? again.querySelector("summary") : again).focus({ preventScroll: true });
    window.scrollTo(...at);
    localTimes();
  };

  // Text that somebody is marking stays where it is.
  const isMarking = () => {
    const marked = document.getSelection();
    return marked && !marked.isCollapsed && main().contains(marked.anchorNode);
  };

  const update = async () => {
    const answer = await fetch("main", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
    if (!fresh) throw new Error("no page");
    if (fresh.dataset.page !== main().dataset.page) { location.reload(); return; }
    if (!isMarking()) replace(document.adoptNode(fresh));
    say("live", "updated " + fresh.dataset.at, false);
  };

  const keepUpdating = async () => {
    if (!document.hidden) {
      try {
        await update();
      } catch {
        const { ended, at } = main().dataset;
        say(ended === "yes" ? "the run has ended" : "connection lost", "last update " + at, ended !== "yes");
      }
    }
    setTimeout(keepUpdating, EVERY);
  };

  localTimes();
  if (live) setTimeout(keepUpdating, EVERY);
})();
