import os

import folder_paths

folder_paths.folder_names_and_paths["shelf"] = ([os.path.join(os.path.dirname(__file__), "shelf")], {".txt"})
