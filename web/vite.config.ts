// How the page is built and served while developing: fixed file names, so that the same sources give the same bytes.
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const server = process.env.FRESCO ?? "http://127.0.0.1:8188";
// Everything that is not a source file goes to the running server; its own Host and Origin keep its guard content.
const proxied = [
  "/api",
  "/view",
  "/prompt",
  "/queue",
  "/history",
  "/object_info",
  "/models",
  "/memory",
  "/free",
  "/fresco",
  "/upload",
  "/userdata",
  "/system_stats",
  "/features",
  "/settings",
  "/interrupt",
  "/embeddings",
  "/internal",
];

function own(proxy: { on(event: "proxyReq" | "proxyReqWs", fn: (request: { removeHeader(name: string): void }) => void): unknown }) {
  for (const event of ["proxyReq", "proxyReqWs"] as const) proxy.on(event, (request) => request.removeHeader("origin"));
}

export default defineConfig({
  plugins: [react()],
  base: "./",
  server: {
    port: Number(process.env.PORT ?? 5173),
    proxy: {
      "/ws": { target: server, ws: true, changeOrigin: true, configure: own },
      ...Object.fromEntries(proxied.map((path) => [`^${path}(/|\\?|$)`, { target: server, changeOrigin: true, configure: own }])),
    },
  },
  build: {
    outDir: "dist",
    target: "es2022",
    sourcemap: false,
    // The licences of what is in the bundle travel with it.
    license: { fileName: "licenses.md" },
    reportCompressedSize: true,
    modulePreload: { polyfill: false },
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  test: { include: ["src/**/*.test.ts", "src/**/*.test.tsx"], environment: "node" },
});
