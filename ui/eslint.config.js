import js from "@eslint/js";
import reactHooks from "eslint-plugin-react-hooks";
import globals from "globals";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["node_modules", "src/api/schema.ts"] },
  js.configs.recommended,
  ...tseslint.configs.strict,
  reactHooks.configs.flat["recommended-latest"],
  {
    languageOptions: { globals: globals.browser },
    rules: {
      eqeqeq: ["error", "always"],
      "max-lines": ["error", 400],
      "no-console": "error",
      // Texts of the store are shown as text. Markup from data never reaches the page.
      "no-restricted-syntax": [
        "error",
        { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Show data as text." },
        { selector: "MemberExpression[property.name=/^(innerHTML|outerHTML)$/]", message: "Show data as text." },
      ],
      "no-restricted-globals": ["error", { name: "fetch", message: "Use api/client.ts." }],
      "@typescript-eslint/consistent-type-imports": ["error", { fixStyle: "inline-type-imports" }],
    },
  },
  { files: ["src/api/client.ts"], rules: { "no-restricted-globals": "off" } },
);
