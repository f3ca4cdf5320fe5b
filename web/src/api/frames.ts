// Reads the binary frames of the socket: previews with and without metadata, and text.

export interface PreviewFrame {
  kind: "preview";
  mime: string;
  bytes: Uint8Array<ArrayBuffer>;
  /** Absent in the old form, which belongs to whatever runs now. */
  promptId?: string;
  nodeId?: string;
}
export interface TextFrame {
  kind: "text";
  nodeId: string;
  text: string;
}
export type Frame = PreviewFrame | TextFrame;

/** The frame, or null where it is of another kind or broken. */
export function readFrame(buffer: ArrayBuffer): Frame | null {
  if (buffer.byteLength < 8) return null;
  const view = new DataView(buffer);
  const event = view.getUint32(0);
  const second = view.getUint32(4);
  if (event === 1) {
    return { kind: "preview", mime: second === 2 ? "image/png" : "image/jpeg", bytes: new Uint8Array(buffer, 8) };
  }
  if (event !== 3 && event !== 4) return null;
  if (8 + second > buffer.byteLength) return null;
  const head = new TextDecoder().decode(new Uint8Array(buffer, 8, second));
  const rest = new Uint8Array(buffer, 8 + second);
  if (event === 3) return { kind: "text", nodeId: head, text: new TextDecoder().decode(rest) };
  try {
    const meta = JSON.parse(head) as { image_type?: string; prompt_id?: string; display_node_id?: string; node_id?: string };
    return {
      kind: "preview",
      mime: meta.image_type === "image/png" ? "image/png" : "image/jpeg",
      bytes: rest,
      promptId: meta.prompt_id,
      nodeId: meta.display_node_id ?? meta.node_id,
    };
  } catch {
    return null;
  }
}
