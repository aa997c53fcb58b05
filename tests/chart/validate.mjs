// Prints, as a JSON list, what the operators' own schemas say against the objects on standard input.
//
// Twice: the schemas that their CRDs carry say which values are wrong, and pass over fields that they
// do not know, as a cluster would (it drops them); the types made of them say which fields those are.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const PACKAGES = {
  "keda.sh": "keda",
  "gateway.networking.k8s.io": "gateway-api",
  "monitoring.coreos.com": "prometheus-operator",
  "external-secrets.io": "external-secrets",
};
const SOURCE = join(dirname(fileURLToPath(import.meta.url)), "objects.ts"); // in memory alone

function module_of(object) {
  const [group, version] = object.apiVersion.split("/");
  return `@kubernetes-models/${PACKAGES[group]}/${group}/${version}`;
}

function said_of(object, what) {
  return `${object.kind} ${object.metadata.name}: ${what}`;
}

async function refused_values(objects) {
  const refusals = [];
  for (const object of objects) {
    const models = await import(module_of(object));
    try {
      new models[object.kind](object).validate();
    } catch (error) {
      refusals.push(said_of(object, error.message));
    }
  }
  return refusals;
}

// Two lines an object: its type, and itself as a literal, in which every field must be known.
function refused_fields(objects) {
  const lines = objects.flatMap((object, i) => [
    `import type { I${object.kind} as T${i} } from "${module_of(object)}/${object.kind}";`,
    `export const o${i}: T${i} = ${JSON.stringify(object)};`,
  ]);
  const text = lines.join("\n");
  const options = {
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    target: ts.ScriptTarget.ES2022,
    noEmit: true,
    strict: true,
    skipLibCheck: true,
    types: [],
  };
  const host = ts.createCompilerHost(options);
  const [open, exists] = [host.getSourceFile, host.fileExists];
  host.fileExists = (name) => name === SOURCE || exists(name);
  host.getSourceFile = (name, how, ...rest) =>
    name === SOURCE ? ts.createSourceFile(name, text, how) : open(name, how, ...rest);
  const program = ts.createProgram([SOURCE], options, host);
  return ts.getPreEmitDiagnostics(program).map((found) => {
    const what = ts.flattenDiagnosticMessageText(found.messageText, " ");
    if (found.file?.fileName !== SOURCE) {
      throw new Error(what);
    }
    const { line } = ts.getLineAndCharacterOfPosition(found.file, found.start);
    return said_of(objects[Math.floor(line / 2)], what);
  });
}

const objects = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify([...(await refused_values(objects)), ...refused_fields(objects)]));
