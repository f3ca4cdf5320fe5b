#!/usr/bin/env python3
"""Print the Rust skeleton of node classes from the reference's object_info facts.

usage: tools/skeleton.py CLASS [CLASS ...]
The output is a start: fields with their wire options in wire order. Doc comments (description, tooltips) and `run` are
yours to write, in your own words.
"""
import json, os, re, sys

INFO = json.load(open(os.path.join(os.path.dirname(__file__), "../tests/gold/object_info.json")))
TYPES = {"INT": "i64", "FLOAT": "f64", "STRING": "String", "BOOLEAN": "bool", "IMAGE": "Image", "MASK": "Mask",
         "LATENT": "Latent", "CONDITIONING": "Conditioning", "SIGMAS": "Sigmas", "COMBO": "String"}
KEYWORDS = {"type", "match", "loop", "move", "ref", "use", "in", "fn", "box", "where", "mod", "impl", "self", "crate", "final", "override", "default"}


def lit(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, int):
        return f"{v}u64" if v > 2**63 - 1 else f"{v}i64" if abs(v) > 2**31 - 1 else str(v)
    if isinstance(v, float):
        return repr(v)
    if isinstance(v, str):
        return json.dumps(v, ensure_ascii=False)
    if isinstance(v, list):
        return "[" + ", ".join(lit(x) for x in v) + "]"
    return "map! {" + ", ".join(f"{json.dumps(k)} => {lit(x)}" for k, x in v.items()) + "}"


def field(name, spec, optional, is_list):
    ty, opts = spec[0], dict(spec[1]) if len(spec) > 1 else {}
    attrs = ["optional"] if optional else []
    ident = re.sub(r"\W", "_", name)
    if ident in KEYWORDS:
        ident = "r#" + ident
    if ident.removeprefix("r#") != name:
        attrs.append(f'name = "{name}"')
    if isinstance(ty, list) or ty == "COMBO":
        choices = ty if isinstance(ty, list) else opts.pop("options", [])
        opts.pop("multiselect", None)
        attrs.append(f"choices = {lit(choices)}" if choices else 'listed = "FILL/ME"')
        rust = "String"
    elif ty.startswith("COMFY_"):
        attrs.append(f"spec = FILL_ME /* {ty} {json.dumps(opts)} */")
        opts, rust = {}, "Value"
    else:
        rust = TYPES.get(ty)
        if rust is None:
            rust = "Value"
            attrs.append(f'ty = "{ty}"')
    if ty == "STRING" and opts.get("multiline") is False:
        opts.pop("multiline")
    attrs += [f"{k} = {lit(v)}" for k, v in opts.items()]
    if is_list:
        rust = f"Vec<{rust}>"
    if optional:
        rust = f"Option<{rust}>"
    head = f"    #[input({', '.join(attrs)})]\n" if attrs else ""
    return f"{head}    {ident}: {rust},\n"


def node(cls):
    i = INFO[cls]
    v3 = "output_matchtypes" in i
    ident = re.sub(r"\W", "", cls.replace("_", ""))
    parts = [f'id = "{cls}"', "v3" if v3 else "v1", f'module = "{i["python_module"]}"']
    if i["display_name"] and (v3 or i["display_name"] != cls):
        parts.append(f'display = {json.dumps(i["display_name"], ensure_ascii=False)}')
    parts.append(f'category = {json.dumps(i["category"])}')
    outs = []
    for k, (t, n, l) in enumerate(zip(i["output"], i["output_name"], i["output_is_list"])):
        tpl = (i.get("output_matchtypes") or [None] * 99)[k]
        if tpl:
            s = f'Output::matching("{tpl}", "{n}")'
        elif isinstance(t, list):
            s = f'Output::combo(Choices::Fixed(/* {t[:3]} */), "{n}")'
        elif n == t and not l:
            s = f'"{t}"'
        else:
            s = f'Output::new("{t}")' + (f'.named("{n}")' if n != t else "")
        outs.append(s + (".list()" if l else ""))
    if outs:
        parts.append(f"outputs({', '.join(outs)})")
    for flag in ("output_node", "deprecated", "experimental"):
        if i.get(flag):
            parts.append(flag)
    hid = i["input"].get("hidden", {})
    implied = v3 and i["output_node"]
    hid = {k: (v[0] if isinstance(v, list) else v) for k, v in hid.items()}
    if implied:
        hid = {k: v for k, v in hid.items() if v not in ("PROMPT", "EXTRA_PNGINFO")}
    if hid:
        parts.append("hidden(" + ", ".join(f'{k} = "{v}"' for k, v in hid.items()) + ")")
    out = f"/// DESCRIBE.\n#[derive(Node)]\n#[node({', '.join(parts)})]\npub struct {ident}"
    fields = "".join(field(n, s, g == "optional", False) for g in ("required", "optional") for n, s in i["input"].get(g, {}).items())
    out += " {\n" + fields + "}\n" if fields else ";\n"
    return out + f"impl Node for {ident} {{\n    fn run(self, cx: &Cx) -> NodeResult {{\n    }}\n}}\n"


for name in sys.argv[1:]:
    print(node(name))
