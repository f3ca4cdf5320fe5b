"""Where models and pictures are. Listings are made here, by the rules of the engine; the table comes from it."""

import logging
import mimetypes
import os
import time

SYSTEM_USER_PREFIX = "__"
supported_pt_extensions = {".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft"}
folder_names_and_paths = {}
base_path = models_dir = output_directory = temp_directory = input_directory = user_directory = ""
filename_list_cache = {}
extension_mimetypes_cache = {"webp": "image", "fbx": "model"}


class CacheHelper:
    """Pins listings while it is entered."""

    def __init__(self):
        self.cache = {}
        self.active = False

    def get(self, key, default=None):
        return self.cache.get(key, default) if self.active else default

    def set(self, key, value):
        if self.active:
            self.cache[key] = value

    def clear(self):
        self.cache.clear()

    def __enter__(self):
        self.active = True
        return self

    def __exit__(self, *_):
        self.active = False
        self.clear()


cache_helper = CacheHelper()


def _setup(hello):
    global base_path, models_dir, output_directory, temp_directory, input_directory, user_directory, __file__
    base_path = hello["base"]
    models_dir = hello["models"]
    output_directory = hello["output"]
    temp_directory = hello["temp"]
    input_directory = hello["input"]
    user_directory = hello["user"]
    # Packs look for their host's folder by this; the file need not exist.
    __file__ = os.path.join(base_path, "folder_paths.py")
    # Classes list them while they are described, and a fresh base folder has none of them.
    for folder in (output_directory, input_directory, temp_directory, user_directory):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            logging.getLogger("fresco").warning("the folder %s cannot be made: %s", folder, error)
    for name, paths, extensions in hello["folders"]:
        extensions = set(extensions)
        folder_names_and_paths[name] = (list(paths), supported_pt_extensions if extensions == {"*pt*"} else extensions)


def map_legacy(folder_name):
    return {"unet": "diffusion_models", "clip": "text_encoders"}.get(folder_name, folder_name)


def set_output_directory(output_dir):
    global output_directory
    output_directory = output_dir


def set_temp_directory(temp_dir):
    global temp_directory
    temp_directory = temp_dir


def set_input_directory(input_dir):
    global input_directory
    input_directory = input_dir


def set_user_directory(user_dir):
    global user_directory
    user_directory = user_dir


def get_output_directory():
    return output_directory


def get_temp_directory():
    return temp_directory


def get_input_directory():
    return input_directory


def get_user_directory():
    return user_directory


def get_system_user_directory(name="system"):
    return os.path.join(user_directory, f"{SYSTEM_USER_PREFIX}{name}")


def get_public_user_directory(user_id):
    if not user_id or user_id.startswith(SYSTEM_USER_PREFIX):
        return None
    return os.path.join(user_directory, user_id)


def get_directory_by_type(type_name):
    return {"output": output_directory, "temp": temp_directory, "input": input_directory}.get(type_name)


def filter_files_content_types(files, content_types):
    kept = []
    for file in files:
        extension = file.rsplit(".", 1)[-1]
        kind = extension_mimetypes_cache.get(extension)
        if kind is None:
            guessed = mimetypes.guess_type(file, strict=False)[0]
            if not guessed:
                continue
            kind = extension_mimetypes_cache[extension] = guessed.split("/")[0]
        if kind in content_types:
            kept.append(file)
    return kept


def annotated_filepath(name):
    for mark, folder in (("[output]", output_directory), ("[input]", input_directory), ("[temp]", temp_directory)):
        if name.endswith(mark):
            return name[: -len(mark)].rstrip(), folder
    return name, None


def _inside(folder, name):
    path = os.path.abspath(os.path.join(folder, name))
    folder = os.path.abspath(folder)
    if os.path.commonpath((folder, path)) != folder:
        raise ValueError(f"{name!r} is outside of {folder}")
    return path


def get_annotated_filepath(name, default_dir=None):
    name, folder = annotated_filepath(name)
    folder = folder if folder is not None else default_dir if default_dir is not None else input_directory
    return os.path.join(folder, name)


def exists_annotated_filepath(name):
    name, folder = annotated_filepath(name)
    return os.path.exists(os.path.join(folder if folder is not None else input_directory, name))


def add_model_folder_path(folder_name, full_folder_path, is_default=False):
    folder_name = map_legacy(folder_name)
    if folder_name not in folder_names_and_paths:
        folder_names_and_paths[folder_name] = ([full_folder_path], set())
        return
    paths = folder_names_and_paths[folder_name][0]
    if full_folder_path in paths:
        if is_default and paths[0] != full_folder_path:
            paths.remove(full_folder_path)
            paths.insert(0, full_folder_path)
    elif is_default:
        paths.insert(0, full_folder_path)
    else:
        paths.append(full_folder_path)


def get_folder_paths(folder_name):
    return list(folder_names_and_paths[map_legacy(folder_name)][0])


def recursive_search(directory, excluded_dir_names=None):
    if not os.path.isdir(directory):
        return [], {}
    excluded = set(excluded_dir_names or ())
    found, folders = [], {}
    for folder, below, names in os.walk(directory, followlinks=True, topdown=True):
        below[:] = [name for name in below if name not in excluded]
        try:
            folders[folder] = os.path.getmtime(folder)
        except OSError:
            continue
        found.extend(os.path.relpath(os.path.join(folder, name), directory) for name in names)
    return found, folders


def filter_files_extensions(files, extensions):
    extensions = set(extensions)
    return sorted(file for file in files if not extensions or os.path.splitext(file)[-1].lower() in extensions)


def get_full_path(folder_name, filename):
    folder_name = map_legacy(folder_name)
    if folder_name not in folder_names_and_paths:
        return None
    filename = os.path.relpath(os.path.join("/", filename), "/")
    for folder in folder_names_and_paths[folder_name][0]:
        path = os.path.join(folder, filename)
        if os.path.isfile(path):
            return path
    return None


def get_full_path_or_raise(folder_name, filename):
    path = get_full_path(folder_name, filename)
    if path is None:
        raise FileNotFoundError(f"Model in folder '{folder_name}' with filename '{filename}' not found.")
    return path


def get_filename_list_(folder_name):
    folder_name = map_legacy(folder_name)
    paths, extensions = folder_names_and_paths[folder_name][:2]
    names, folders = set(), {}
    for path in paths:
        found, below = recursive_search(path, excluded_dir_names=[".git"])
        names.update(filter_files_extensions(found, extensions))
        folders.update(below)
    return sorted(names), folders, time.perf_counter()


def cached_filename_list_(folder_name):
    pinned = cache_helper.get(folder_name)
    if pinned is not None:
        return pinned
    known = filename_list_cache.get(folder_name)
    if known is None:
        return None
    for folder, changed in known[1].items():
        try:
            if os.path.getmtime(folder) != changed:
                return None
        except OSError:
            return None
    for folder in folder_names_and_paths[folder_name][0]:
        if os.path.isdir(folder) and folder not in known[1]:
            return None
    return known


def get_filename_list(folder_name):
    folder_name = map_legacy(folder_name)
    found = cached_filename_list_(folder_name)
    if found is None:
        found = get_filename_list_(folder_name)
        filename_list_cache[folder_name] = found
    cache_helper.set(folder_name, found)
    return list(found[0])


def get_save_image_path(filename_prefix, output_dir, image_width=0, image_height=0):
    def fill(text):
        now = time.localtime()
        for mark, value in (
            ("%width%", image_width),
            ("%height%", image_height),
            ("%year%", now.tm_year),
            ("%month%", f"{now.tm_mon:02}"),
            ("%day%", f"{now.tm_mday:02}"),
            ("%hour%", f"{now.tm_hour:02}"),
            ("%minute%", f"{now.tm_min:02}"),
            ("%second%", f"{now.tm_sec:02}"),
        ):
            text = text.replace(mark, str(value))
        return text

    if "%" in filename_prefix:
        filename_prefix = fill(filename_prefix)
    subfolder = os.path.dirname(os.path.normpath(filename_prefix))
    filename = os.path.basename(os.path.normpath(filename_prefix))
    folder = _inside(output_dir, subfolder)
    highest = 0
    start = os.path.normcase(filename) + "_"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        names = []
    for name in names:
        name = os.path.normcase(name)
        if name.startswith(start):
            digits = name[len(start) :].split("_")[0].split(".")[0]
            if digits.isdigit():
                highest = max(highest, int(digits))
    return folder, filename, highest + 1, subfolder, filename_prefix


def get_input_subfolders():
    found = []
    for folder, below, _ in os.walk(input_directory):
        found.extend(os.path.relpath(os.path.join(folder, name), input_directory).replace(os.sep, "/") for name in below)
    return sorted(found)
