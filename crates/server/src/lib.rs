//! HTTP and WebSocket: the wire shapes of ComfyUI and ours.
