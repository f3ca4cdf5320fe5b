// Says when the connection is lost, and shows the page's head on phones.
import { useEffect, useState } from "react";
import { useLive } from "../state/live";
import { Icon, Logo } from "../ui";
import { ThemeButton } from "./Nav";
import css from "./Banner.module.css";

/** Short breaks are not worth a word. */
const PATIENCE = 1200;

export function Banner() {
  const connected = useLive((s) => s.connected);
  const [lost, setLost] = useState(false);
  useEffect(() => {
    if (connected) {
      setLost(false);
      return;
    }
    const timer = setTimeout(() => setLost(true), PATIENCE);
    return () => clearTimeout(timer);
  }, [connected]);
  return (
    <>
      <header className={css.head}>
        <a href="#/create" className={css.brand}>
          <Logo size={26} /> Fresco
        </a>
        <ThemeButton />
      </header>
      <div role="status" className={lost ? css.banner : undefined}>
        {lost && (
          <>
            <Icon name="warning" size={18} /> No connection to Fresco. Trying again; your queue is safe on the server.
          </>
        )}
      </div>
    </>
  );
}
