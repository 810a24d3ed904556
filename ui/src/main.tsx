/** Entry of the bundle: puts one component per registered app where the Airflow UI looks for it. */
import { App } from "./app/App";
import { settled } from "./app/settled";
import { addStyles } from "./app/styles";
import { RunTab } from "./tabs/RunTab";
import { TrialTab } from "./tabs/TrialTab";

addStyles();

// The names are the ones of `react_apps` in plugins/dtrain_plugin.py.
Object.assign(globalThis, { DTrain: settled(App), "DTrain experiments": settled(RunTab), "DTrain trial": settled(TrialTab) });
