"""A pack of one file."""

import os

import folder_paths


class SingleFolders:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"file": (folder_paths.get_filename_list("shelf"),)}}

    RETURN_TYPES = ("STRING",)
    FUNCTION = "go"
    OUTPUT_NODE = True

    def go(self, file):
        same = os.path.dirname(folder_paths.__file__) == folder_paths.base_path
        import __main__

        main = os.path.dirname(__main__.__file__) == folder_paths.base_path
        return {"ui": {"text": [file, same, main]}}


NODE_CLASS_MAPPINGS = {"SingleFolders": SingleFolders}
