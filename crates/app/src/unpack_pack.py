"""Unpacks an archive into a folder that must not exist: `unpack ARCHIVE FOLDER`. Nothing leaves the folder, no links."""

import os
import sys
import tarfile
import zipfile

LIMIT = 1 << 30
COUNT = 20_000


def places(names):
    """Where each name goes: without the one folder that many archives have around everything."""
    firsts = {name.replace("\\", "/").split("/")[0] for name in names}
    around = next(iter(firsts)) + "/" if len(firsts) == 1 and any("/" in name.rstrip("/") for name in names) else ""
    for name in names:
        clean = name.replace("\\", "/")
        parts = clean.split("/")
        if clean.startswith("/") or ".." in parts or ":" in parts[0]:
            sys.exit(f"the archive has a file outside of its folder: {name}")
        yield name, clean[len(around) :]


def main(archive, folder):
    total = 0

    def write(place, source):
        nonlocal total
        path = os.path.join(folder, *place.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            while True:
                data = source.read(1 << 20)
                if not data:
                    break
                total += len(data)
                if total > LIMIT:
                    sys.exit("the archive unpacks to more than 1 GB")
                file.write(data)

    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            names = [entry.filename for entry in opened.infolist() if not entry.is_dir()]
            if len(names) > COUNT:
                sys.exit("the archive has too many files")
            wheel = archive.endswith(".whl")
            listed = ((name, name) for name in names if ".dist-info/" not in name) if wheel else places(names)
            for name, place in listed:
                with opened.open(name) as source:
                    write(place, source)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened:
            members = {member.name: member for member in opened if member.isfile()}
            if len(members) > COUNT:
                sys.exit("the archive has too many files")
            for name, place in places(list(members)):
                write(place, opened.extractfile(members[name]))
    else:
        sys.exit("this is neither a zip nor a tar archive")


main(sys.argv[1], sys.argv[2])
