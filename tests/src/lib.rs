//! Black-box tests of the built program: they talk HTTP and WebSocket only.
