"""Prompts as jobs: what the job list of the server says of a queue item and of a history entry."""

MODELS = (".obj", ".fbx", ".gltf", ".glb")
MEDIA = frozenset({"images", "video", "audio"})


class JobStatus:
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    ALL = [PENDING, IN_PROGRESS, COMPLETED, FAILED]


def is_previewable(media_type, item):
    if media_type in MEDIA:
        return True
    if str(item.get("format") or "").startswith(("video/", "audio/")):
        return True
    return str(item.get("filename") or "").lower().endswith(MODELS)


def _present(job):
    return {key: value for key, value in job.items() if value is not None}


def _workflow_id(extra_data):
    found = extra_data
    for key in ("extra_pnginfo", "workflow", "id"):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def normalize_queue_item(item, status):
    number, prompt_id, _prompt, extra_data = item[0], item[1], item[2], item[3] or {}
    return _present(
        {
            "id": prompt_id,
            "status": status,
            "priority": number,
            "create_time": extra_data.get("create_time"),
            "outputs_count": 0,
            "workflow_id": _workflow_id(extra_data),
        }
    )


def normalize_history_item(prompt_id, history_item, include_outputs=False):
    queued = history_item["prompt"]
    number, prompt, extra_data = queued[0], queued[2], queued[3] or {}
    status = history_item.get("status") or {}
    outputs = history_item.get("outputs") or {}
    started = ended = error = None
    for name, data in status.get("messages") or ():
        if name == "execution_start":
            started = data.get("timestamp")
        elif name in ("execution_success", "execution_error", "execution_interrupted"):
            ended = data.get("timestamp")
            if name == "execution_error":
                error = data
    count, preview = get_outputs_summary(outputs)
    job = _present(
        {
            "id": prompt_id,
            "status": JobStatus.FAILED if status.get("status_str") == "error" else JobStatus.COMPLETED,
            "priority": number,
            "create_time": extra_data.get("create_time"),
            "execution_start_time": started,
            "execution_end_time": ended,
            "execution_error": error,
            "outputs_count": count,
            "preview_output": preview,
            "workflow_id": _workflow_id(extra_data),
        }
    )
    if include_outputs:
        job["outputs"] = outputs
        job["execution_status"] = status
        job["workflow"] = {"prompt": prompt, "extra_data": extra_data}
    return job


def get_outputs_summary(outputs):
    count, preview, fallback = 0, None, None
    for node_id, media in outputs.items():
        if not isinstance(media, dict):
            continue
        for media_type, items in media.items():
            if media_type == "animated" or not isinstance(items, list):
                continue
            for item in items:
                if not isinstance(item, dict):
                    continue
                count += 1
                if preview is not None or not is_previewable(media_type, item):
                    continue
                shown = {**item, "nodeId": node_id, "mediaType": media_type}
                if item.get("type") == "output":
                    preview = shown
                elif fallback is None:
                    fallback = shown
    return count, preview or fallback


def _duration(job):
    start, end = job.get("execution_start_time") or 0, job.get("execution_end_time") or 0
    return end - start if start and end else 0


def apply_sorting(jobs, sort_by="created_at", sort_order="desc"):
    key = _duration if sort_by == "execution_duration" else lambda job: job.get("create_time") or 0
    return sorted(jobs, key=key, reverse=sort_order == "desc")


def get_job(prompt_id, running, queued, history):
    if prompt_id in history:
        return normalize_history_item(prompt_id, history[prompt_id], include_outputs=True)
    for items, status in ((running, JobStatus.IN_PROGRESS), (queued, JobStatus.PENDING)):
        for item in items:
            if item[1] == prompt_id:
                return normalize_queue_item(item, status)
    return None


def get_all_jobs(
    running, queued, history, status_filter=None, workflow_id=None, sort_by="created_at", sort_order="desc", limit=None, offset=0
):
    """A page of jobs, and how many there are in all."""
    wanted = JobStatus.ALL if status_filter is None else status_filter
    jobs = [normalize_queue_item(item, JobStatus.IN_PROGRESS) for item in running]
    jobs += [normalize_queue_item(item, JobStatus.PENDING) for item in queued]
    jobs += [normalize_history_item(prompt_id, item) for prompt_id, item in history.items()]
    jobs = [job for job in jobs if job["status"] in wanted and (workflow_id is None or job.get("workflow_id") == workflow_id)]
    jobs = apply_sorting(jobs, sort_by, sort_order)
    end = None if limit is None else offset + limit
    return jobs[max(offset, 0) : end], len(jobs)
