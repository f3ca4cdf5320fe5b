//! What is on disk: directories, names, containment, model folders, image files with their metadata.
