import os

import folder_paths


def load_extra_path_config(yaml_path):
    import yaml

    with open(yaml_path, encoding="utf-8") as file:
        config = yaml.safe_load(file) or {}
    home = os.path.dirname(os.path.abspath(yaml_path))
    for section in config.values():
        if not isinstance(section, dict):
            continue
        section = dict(section)
        root = section.pop("base_path", None)
        default = section.pop("is_default", False)
        root = os.path.join(home, os.path.expandvars(os.path.expanduser(root))) if root else home
        for kind, paths in section.items():
            for path in str(paths).split("\n"):
                if path:
                    folder_paths.add_model_folder_path(kind, os.path.normpath(os.path.join(root, path)), default)
