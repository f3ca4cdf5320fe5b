// Starts the page.
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { restoreRoute } from "./shell/SignIn";
import { showTheme, useSettings } from "./state/settings";
import "./ui/tokens.css";

restoreRoute();
showTheme(useSettings.getState().theme);
const root = document.getElementById("root");
if (root)
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
