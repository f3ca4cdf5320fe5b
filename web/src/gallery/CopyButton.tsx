// A button that copies a text, also where the page came over plain http and the browser hides its clipboard.
import { useEffect, useState } from "react";
import { IconButton, toast } from "../ui";

async function copy(text: string): Promise<void> {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden-visually";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser does not allow it");
}

export function CopyButton({ text, what }: { text: string; what: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const press = () =>
    copy(text).then(
      () => setDone(true),
      (e: Error) => toast(`Could not copy: ${e.message}`, "bad"),
    );
  return <IconButton size="s" label={done ? "Copied" : `Copy ${what}`} icon={done ? "check" : "copy"} onClick={() => void press()} />;
}
