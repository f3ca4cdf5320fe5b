// The event socket: connects, announces what the page understands, and comes back after a break.
import { readEvent, type ServerEvent } from "./events";
import { type Frame, readFrame } from "./frames";
import { clientId } from "./identity";

export interface SocketHandlers {
  open(): void;
  close(): void;
  event(event: ServerEvent): void;
  frame(frame: Frame): void;
}

const FLAGS = { supports_preview_metadata: true, supports_memory_events: true, supports_fresco_events: true, fresco_all_previews: true };
const FIRST_WAIT = 300;
const LONGEST_WAIT = 8000;

/** How long to wait before the n-th attempt to reconnect. */
export function backoff(attempt: number): number {
  return Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** attempt);
}

export interface Socket {
  /** Connects at once if there is no connection, e.g. because the network is back. */
  nudge(): void;
  /** Connects anew under the current client id. */
  restart(): void;
  stop(): void;
}

export function openSocket(handlers: SocketHandlers): Socket {
  let socket: WebSocket | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let attempt = 0;
  let stopped = false;

  const connect = () => {
    clearTimeout(timer);
    if (stopped) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const own = new WebSocket(`${scheme}//${location.host}/ws?clientId=${encodeURIComponent(clientId())}`);
    own.binaryType = "arraybuffer";
    socket = own;
    own.onopen = () => {
      attempt = 0;
      own.send(JSON.stringify({ type: "feature_flags", data: FLAGS }));
      handlers.open();
    };
    own.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (socket !== own) return;
      if (typeof data !== "string") {
        const frame = readFrame(data);
        if (frame) handlers.frame(frame);
        return;
      }
      let message: { type?: unknown; data?: unknown };
      try {
        message = JSON.parse(data) as typeof message;
      } catch {
        return;
      }
      const event = typeof message.type === "string" ? readEvent(message.type, message.data) : null;
      if (event) handlers.event(event);
    };
    own.onclose = () => {
      if (socket !== own) return;
      socket = null;
      handlers.close();
      if (!stopped) timer = setTimeout(connect, backoff(attempt++));
    };
  };

  connect();
  return {
    nudge() {
      if (!socket && !stopped) {
        attempt = 0;
        connect();
      }
    },
    restart() {
      const old = socket;
      socket = null;
      old?.close();
      attempt = 0;
      connect();
    },
    stop() {
      stopped = true;
      clearTimeout(timer);
      socket?.close();
    },
  };
}
