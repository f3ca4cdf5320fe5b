// Tells where one is after moving inside the view: the page's title, and the focus on the heading.
import { useEffect } from "react";

export function useHeading(title: string): void {
  useEffect(() => {
    document.title = `${title} · Fresco`;
  }, [title]);
  useEffect(() => {
    scrollTo(0, 0);
    // The link that led here is gone, and with it the focus; a control that was reached since then keeps it.
    if (document.activeElement && document.activeElement !== document.body) return;
    const heading = document.querySelector<HTMLElement>("main h1");
    heading?.focus({ preventScroll: true });
  }, []);
}
