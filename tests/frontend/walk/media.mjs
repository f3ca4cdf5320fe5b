// Films and sounds that the program writes, as a browser plays them, and as the gallery shows them.
import { check, go, step, until } from "./kit.mjs";

const frames = 12;
const film = (saver) => ({
  1: { class_type: "EmptyImage", inputs: { width: 96, height: 64, batch_size: frames, color: 0x3060c0 } },
  2: { class_type: "EmptyAudio", inputs: { duration: 2, sample_rate: 44100, channels: 2 } },
  3: { class_type: "CreateVideo", inputs: { images: ["1", 0], fps: 12, audio: ["2", 0] } },
  ...saver,
});
const prompts = [
  ["H.264", "video", film({ 4: { class_type: "SaveVideo", inputs: { video: ["3", 0], filename_prefix: "walk", format: "auto", codec: "auto" } } })],
  ["VP9", "video", film({ 4: { class_type: "SaveWEBM", inputs: { images: ["1", 0], filename_prefix: "walk9", codec: "vp9", fps: 12, crf: 32 } } })],
  ["AV1", "video", film({ 4: { class_type: "SaveWEBM", inputs: { images: ["1", 0], filename_prefix: "walk1", codec: "av1", fps: 12, crf: 32 } } })],
  ["FLAC", "audio", film({ 4: { class_type: "SaveAudio", inputs: { audio: ["2", 0], filename_prefix: "walk" } } })],
  ["MP3", "audio", film({ 4: { class_type: "SaveAudioMP3", inputs: { audio: ["2", 0], filename_prefix: "walk", quality: "128k" } } })],
  ["Opus", "audio", film({ 4: { class_type: "SaveAudioOpus", inputs: { audio: ["2", 0], filename_prefix: "walk", quality: "96k" } } })],
];

/** Runs a prompt to its end and gives the file that node 4 saved. */
async function saved(page, prompt) {
  const id = await page.evaluate(async (prompt) => {
    const answer = await fetch("/prompt", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ prompt }) });
    return (await answer.json()).prompt_id;
  }, prompt);
  let entry;
  await until("the prompt to end", async () => {
    entry = await page.evaluate(async (id) => (await (await fetch(`/history/${id}`)).json())[id], id);
    return Boolean(entry);
  });
  check(entry.status.status_str === "success", JSON.stringify(entry.status));
  const output = entry.outputs["4"];
  return { id, file: (output.images ?? output.audio)[0] };
}

/** What a player says of a file when it has played it to its end. */
const played = (page, kind, file) =>
  page.evaluate(
    ([kind, query]) =>
      new Promise((resolve) => {
        const player = document.createElement(kind);
        const end = (error) => resolve({ error, duration: player.duration, width: player.videoWidth, height: player.videoHeight });
        player.muted = true;
        player.onended = () => end("");
        player.onerror = () => end(player.error?.message || "it cannot be played");
        player.src = `/view?${query}`;
        player.playbackRate = 4;
        void player.play().catch((e) => end(String(e)));
      }),
    [kind, new URLSearchParams(file).toString()],
  );

export async function walkMedia({ page }) {
  let film;
  for (const [name, kind, prompt] of prompts) {
    await step(page, `media: ${name} plays to its end`, async () => {
      const { id, file } = await saved(page, prompt);
      film ??= { id, file };
      const seen = await played(page, kind, file);
      check(seen.error === "", `${name}: ${seen.error}`);
      const wanted = kind === "video" ? frames / 12 : 2;
      check(Math.abs(seen.duration - wanted) < 0.06, `${name} lasts ${seen.duration} s instead of ${wanted}`);
      if (kind === "video") check(seen.width === 96 && seen.height === 64, `${name} is ${seen.width} x ${seen.height}`);
    });
  }
  await step(page, "media: the gallery plays a film", async () => {
    await go(page, "Gallery");
    await page.evaluate((id) => (location.hash = `#/gallery/${id}`), film.id);
    const player = page.locator(`video[src*="${film.file.filename}"]`);
    await player.waitFor();
    await until("the film to be read", () => player.evaluate((video) => video.readyState >= 1));
  });
}
